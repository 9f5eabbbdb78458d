"""A trained run as a small web page on this machine: molecules in, predictions and their explanations out.

``tokengt serve RUN`` starts it, :func:`tokengt.serve.running.serve` does the same from Python, and
:func:`tokengt.serve.app.create_app` is the application alone, for tests and for servers of your own. Only these two
need FastAPI and uvicorn (the extra ``serve``), and only the verb imports them.
"""
