// Times in the time zone of who looks. The server writes them in UTC.

const format = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "medium" });

// Once for all of the page: "times are in Asia/Shanghai (UTC+8)".
export function sayZone() {
  const element = document.getElementById("zone");
  if (!element) return;
  const minutes = -new Date().getTimezoneOffset();
  const rest = Math.abs(minutes) % 60;
  const hours = Math.floor(Math.abs(minutes) / 60);
  const offset = minutes ? `UTC${minutes < 0 ? "-" : "+"}${hours}${rest ? `:${String(rest).padStart(2, "0")}` : ""}` : "UTC";
  const name = format.resolvedOptions().timeZone;
  element.textContent = element.dataset.text.replace("{zone}", name === offset ? name : `${name} (${offset})`);
}

export function localise(within) {
  for (const element of within.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    element.title = element.textContent;
    element.textContent = format.format(moment);
  }
}
