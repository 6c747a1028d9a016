"""A browser without a window: it keeps cookies, follows nothing by itself, and sends the forms that a page has."""

from __future__ import annotations

import http.client
import re
import urllib.parse
from dataclasses import dataclass, field
from html import unescape
from http.cookies import SimpleCookie
from pathlib import Path

TOKEN = "operate-token-of-the-test"


@dataclass(frozen=True)
class Page:
    status: int
    headers: http.client.HTTPMessage
    text: str

    @property
    def location(self) -> str:
        return str(self.headers["location"])

    @property
    def heading(self) -> str:
        found = re.search(r"<h1[^>]*>(.*?)</h1>", self.text, re.DOTALL)
        return unescape(found[1]) if found else ""

    @property
    def form_token(self) -> str:
        """Of the first form that posts."""
        found = re.search(r'name="csrf" value="([^"]+)"', self.text)
        assert found is not None, self.text
        return found[1]

    def links(self) -> list[str]:
        return [unescape(link) for link in re.findall(r'<a [^>]*href="([^"]*)"', self.text)]


@dataclass
class Visitor:
    url: str
    cookies: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return urllib.parse.urlsplit(self.url).netloc

    def get(self, path: str, **headers: str) -> Page:
        return self.ask("GET", path, None, headers)

    def post(self, path: str, fields: dict[str, str], **headers: str) -> Page:
        """A form, as this browser would send it from a page of the console, unless ``headers`` say otherwise."""
        given = {"Origin": self.url, "Content-Type": "application/x-www-form-urlencoded", **headers}
        return self.ask("POST", path, urllib.parse.urlencode(fields), given)

    def ask(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> Page:
        """Header names have ``_`` for ``-``; one that is empty is not sent."""
        given = {
            "Accept": "text/html,*/*;q=0.8",
            **self.headers,
            **{n.replace("_", "-"): v for n, v in headers.items()},
        }
        if self.cookies:
            given["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            connection.request(method, path, body, {name: value for name, value in given.items() if value})
            answer = connection.getresponse()
            page = Page(answer.status, answer.headers, answer.read().decode())
        finally:
            connection.close()
        for line in page.headers.get_all("set-cookie") or []:
            self.cookies.update({name: morsel.value for name, morsel in SimpleCookie(line).items()})
        return page

    def sign_in(self, who: str = "Ada", token: str = TOKEN, after: str = "/console/") -> Page:
        form = self.get("/console/login")
        fields = {"csrf": form.form_token, "who": who, "token": token, "next": after}
        return self.post("/console/login", fields)


def guarded_configuration(folder: Path, more: str = "") -> Path:
    """A configuration with tokens for every scope; the operators' are in the file ``operate``."""
    (folder / "operate").write_text(f"{TOKEN}\n")
    (folder / "operate").chmod(0o600)
    file = folder / "exporter.yml"
    file.write_text(
        f"tokens:\n  operate: [{{file: {folder / 'operate'}}}]\n  push: [{{value: push-token-of-the-test}}]\n"
        f"  alert: [{{value: alert-token-of-the-test}}]\n{more}"
    )
    return file
