"""The units that Grafana knows, by the ids that a dashboard has. Called by :mod:`exporter.bundle.dashboards`.

Grafana shows a unit that it does not know behind the bare number, so that a misspelt "s" is no time any more.
"""

from __future__ import annotations

import re
from typing import Final

_KNOWN = """
    none string short sishort percent percentunit humidity dB candela hex0x hex sci locale pixel
    accMS2 accFS2 accG degree radian grad arcmin arcsec areaM2 areaF2 areaMI2 acres hectares
    flops mflops gflops tflops pflops eflops zflops yflops
    ppm conppb conngm3 conngNm3 conμgm3 conμgNm3 conmgm3 conmgNm3 congm3 congNm3 conmgdL conmmolL
    bytes decbytes bits decbits kbytes deckbytes mbytes decmbytes gbytes decgbytes tbytes dectbytes pbytes decpbytes
    pps binBps Bps binbps bps KiBs Kibits KBs Kbits MiBs Mibits MBs Mbits GiBs Gibits GBs Gbits TiBs Tibits TBs Tbits
    PiBs Pibits PBs Pbits
    dateTimeAsIso dateTimeAsIsoNoDateIfToday dateTimeAsUS dateTimeAsUSNoDateIfToday dateTimeAsLocal
    dateTimeAsLocalNoDateIfToday dateTimeAsSystem dateTimeFromNow
    watt kwatt megwatt gwatt mwatt Wm2 voltamp kvoltamp voltampreact kvoltampreact watth watthperkg kwatth kwattm
    amph kamph mamph joule ev amp kamp mamp volt kvolt mvolt dBm mohm ohm kohm Mohm
    farad µfarad nfarad pfarad ffarad henry mhenry µhenry lumens
    flowgpm flowcms flowcfs flowcfm litreh flowlpm flowmlpm lux forceNm forcekNm forceN forcekN
    Hs KHs MHs GHs THs PHs EHs massmg massg masslb masskg masst lengthmm lengthin lengthft lengthm lengthkm lengthmi
    pressurembar pressurebar pressurekbar pressurepa pressurehpa pressurekpa pressureinhg pressurepsi
    rotrpm rothz rotrads rotdegs celsius fahrenheit kelvin
    hertz ns µs ms s m h d dtdurationms dtdurations dthms dtdhms timeticks clockms clocks
    cps ops reqps rps wps iops eps mps recps cpm opm reqpm rpm wpm epm mpm
    radbq radci radgy radrad radsv radmsv radµsv radrem radexpckg radr radsvh radmsvh radµsvh
    velocityms velocitykmh velocitymph velocityknot mlitre litre m3 Nm3 dm3 gallons bool bool_yes_no bool_on_off
    """
KNOWN: Final = frozenset(_KNOWN.split())

_MADE: Final = re.compile(r"(?:(?:suffix|prefix|time|si|count|currency|bool|string)(?::.+))|currency\w+")
"""Those that are made up in the dashboard, and currencies."""


def is_known(unit: str) -> bool:
    """Whether Grafana knows a unit, or the dashboard says itself how it is written.

    >>> is_known("percentunit"), is_known("suffix: tokens/s"), is_known("secnds")
    (True, True, False)
    """
    return unit in KNOWN or _MADE.fullmatch(unit) is not None
