// Keeps a page up to date: fetches it again every few seconds and replaces the elements marked data-live where they
// changed. The page works without it.

import { localise, sayZone } from "./times.js";

const root = document.documentElement;
const seconds = Number(root.dataset.every) || 0;
const trouble = document.getElementById("live-trouble");
const announcer = document.getElementById("announcer");
let timer = 0;
let failures = 0;

localise(document);
sayZone();
forgetSwitches();
wire();

function wire() {
  document.addEventListener("keydown", (event) => {
    const field = document.querySelector("[data-slash]");
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? "");
    if (event.key === "/" && field && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      field.focus();
      field.select();
    }
  });
  for (const field of document.querySelectorAll("[data-submit]")) {
    field.addEventListener("change", () => field.form.requestSubmit());
  }
  for (const field of document.querySelectorAll("[data-filter]")) {
    field.parentElement.hidden = false;
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      for (const row of document.getElementById(field.dataset.filter).rows) {
        row.hidden = !row.textContent.toLowerCase().includes(wanted);
      }
    });
  }
  if (!seconds) return;
  schedule();
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
}

// Language and colours are remembered; in the address they would be switched back when somebody goes back.
function forgetSwitches() {
  const address = new URL(location.href);
  if (!address.searchParams.has("lang") && !address.searchParams.has("theme")) return;
  address.searchParams.delete("lang");
  address.searchParams.delete("theme");
  history.replaceState(null, "", address);
}

function schedule() {
  clearTimeout(timer);
  // Slower while nothing answers: a fleet of open pages must not stand in the way of a start.
  timer = setTimeout(refresh, 1000 * seconds * Math.min(6, 1 + failures));
}

async function refresh() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    const answer = await fetch(location.href, {
      headers: { Accept: "text/html", "X-Console-Live": "1" },
      cache: "no-store",
      signal: AbortSignal.timeout(20000),
    });
    if (answer.status === 401) return ended();
    if (!answer.ok) throw new Error(String(answer.status));
    replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    failures = 0;
    trouble.hidden = true;
  } catch {
    failures += 1;
    if (failures > 1) tell(root.dataset.lost);
  }
  schedule();
}

function replace(fresh) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const now = fresh.getElementById(old.id);
    if (!now) continue;
    localise(now);
    if (old.innerHTML !== now.innerHTML) swap(old, now);
    if (now.dataset.announce && now.dataset.announce !== old.dataset.announce) {
      old.dataset.announce = now.dataset.announce;
      announcer.textContent = now.dataset.announce;
    }
  }
  document.title = fresh.title;
  document.dispatchEvent(new CustomEvent("live"));
}

// What somebody has marked, scrolled to or is about to press stays as it is.
function swap(old, now) {
  const selection = getSelection();
  if (selection && !selection.isCollapsed && old.contains(selection.anchorNode)) return;
  const focused = old.contains(document.activeElement) ? document.activeElement : null;
  const places = [...old.querySelectorAll(".scroll")].map((one) => [one.scrollLeft, one.scrollTop]);
  const opened = [...old.querySelectorAll("details")].map((one) => one.open);
  old.replaceChildren(...now.childNodes);
  old.querySelectorAll(".scroll").forEach((one, n) => one.scrollTo(...(places[n] ?? [0, 0])));
  old.querySelectorAll("details").forEach((one, n) => (one.open = opened[n] ?? one.open));
  if (focused) same(old, focused)?.focus({ preventScroll: true });
}

function same(within, element) {
  if (element.id) return document.getElementById(element.id);
  return [...within.querySelectorAll(element.localName)].find(
    (one) => one.getAttribute("href") === element.getAttribute("href") && one.className === element.className,
  );
}

function tell(text) {
  trouble.textContent = text;
  trouble.hidden = false;
}

function ended() {
  tell(`${root.dataset.ended} `);
  const link = document.createElement("a");
  link.href = location.href;
  link.textContent = root.dataset.signIn;
  trouble.append(link);
}
