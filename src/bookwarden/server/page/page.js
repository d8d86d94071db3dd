// Reads the page again every ten seconds while it is looked at, in place, so that nothing jumps and no focus is lost.
"use strict";
const EVERY_MS = 10_000;

async function refresh() {
  const when = document.getElementById("when");
  if (when === null || document.hidden) return;
  try {
    const answer = await fetch(location.pathname + location.search, { cache: "no-store", signal: AbortSignal.timeout(EVERY_MS) });
    if (!answer.ok) throw new Error(String(answer.status));
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = document.getElementById("main");
    const held = document.activeElement !== null && document.activeElement !== main && main.contains(document.activeElement);
    const selected = String(document.getSelection()) !== "";
    const typed = [...main.querySelectorAll("input")].some(one => one.value !== one.defaultValue);
    // A link that has the focus, text that is being copied, and a name that is being typed, stay until they are left.
    if (!held && !selected && !typed) {
      main.replaceChildren(...next.getElementById("main").childNodes);
      document.title = next.title;
      when.replaceChildren(...next.getElementById("when").childNodes);
    }
    when.classList.remove("stale");
  } catch {
    if (!when.classList.contains("stale")) {
      when.classList.add("stale");
      when.append(": bookwarden does not answer");
    }
  }
}

setInterval(refresh, EVERY_MS);
document.addEventListener("visibilitychange", refresh);
