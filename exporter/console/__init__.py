"""The console: pages for people without Grafana, and for approving a recovery. Mounted by :mod:`exporter.cli`.

Server-rendered with Jinja2, no build step, no outside host. How a page is made (see :mod:`exporter.console.visiting`):

    def incident_pages(console: Console) -> list[HTTPRouteHandler]:
        @get("/console/incident")
        async def incident(request: AnyRequest) -> Response[bytes]:
            visitor = console.enter(request)             # may sign in first; raises what is answered as a page
            wanted = visitor.asked("id")                 # of the query; "" where it is not there
            found = find(wanted)
            if found is None:
                raise Refused("not_found", f"There is no incident {wanted}.", status=404)
            return await visitor.page("incident.html", title=found.id, incident=found)

        @post("/console/incident/acknowledge")
        async def acknowledge(request: AnyRequest) -> Response[bytes]:
            visitor, form = await console.decide(request)   # signed in, own origin, right CSRF token
            who = visitor.named(form)                       # of the session, else the form's field `who`, remembered
            ...
            return visitor.go_to("/console/incident", id=form["id"])

        return [incident, acknowledge]

and one line for ``incident_pages`` in :data:`exporter.console.rooms.PAGES`. A path that takes only POST gets a page
that says so for GET by itself.

Templates extend ``base.html`` and fill the blocks ``content`` (required), ``heading``, ``actions`` and ``every``
(seconds between two refreshes). In every template:

- ``_("…")`` and ``ngettext("…", "…", n)`` for text; ``told(text)`` for a constant text that comes from the program (a
  detector's meaning or advice), in an attribute ``said(text)``; ``label("state", name)`` for the name of a state,
  severity, phase or signal (see ``labels.py``); and ``lang="en"`` on what stays English;
- ``link("/console/run", id=run_id)`` for an address, ``static("console.css")`` for a file;
- ``{{ form_guard() }}`` inside every form that posts, and ``{% import "parts.html" as parts with context %}`` for
  badges, severities, times and icons;
- filters ``number``, ``integer``, ``percent``, ``seconds`` (a duration), ``ago``, ``when`` (Unix seconds as
  ``<time>``), ``amount`` (bytes);
- an element with an ``id`` and the attribute ``data-live`` is fetched again every few seconds and replaced where it
  changed; what ``data-announce`` holds on it is read out by a screen reader when that changed.

No inline script and no ``style`` attribute: the Content-Security-Policy forbids both. New texts go into
``languages/zh.po`` (``python -m exporter.console.extraction --update`` adds them, to be translated by hand).
"""

from exporter.console.rooms import console

__all__ = ["console"]
