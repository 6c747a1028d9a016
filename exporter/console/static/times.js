// Times in the time zone of who looks. The server writes them in UTC.

const format = new Intl.DateTimeFormat(document.documentElement.lang, { dateStyle: "medium", timeStyle: "medium" });

export function localise(within) {
  for (const element of within.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.dateTime);
    if (Number.isNaN(moment.getTime())) continue;
    element.title = element.textContent;
    element.textContent = format.format(moment);
  }
}
