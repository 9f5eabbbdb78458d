// Tabs as the ARIA practices want them: one is in the order of the Tab key, arrows go to the others.
export class Tabs {
  constructor(list) {
    this.list = list;
    list.addEventListener("click", (event) => event.target.closest("[role=tab]") && this.choose(event.target.closest("[role=tab]").id));
    list.addEventListener("keydown", (event) => this.key(event));
  }

  get tabs() {
    return [...this.list.querySelectorAll("[role=tab]:not([hidden])")];
  }

  key(event) {
    const { tabs } = this;
    const here = tabs.findIndex((tab) => tab === document.activeElement);
    const there = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (there === undefined) return;
    event.preventDefault();
    const tab = tabs[(there + tabs.length) % tabs.length];
    this.choose(tab.id);
    tab.focus();
  }

  choose(id) {
    for (const tab of this.list.querySelectorAll("[role=tab]")) {
      const chosen = tab.id === id;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !chosen;
    }
  }
}
