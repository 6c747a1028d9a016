"""What a site takes with it: rules, routes, dashboards and compose files, written out and checked."""
