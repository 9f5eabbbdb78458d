"""The paper's last table: nodes of one large graph, on its six graphs and on heterophilous ones."""
