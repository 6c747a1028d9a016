// Parses PromQL with the grammar of Prometheus 3: a JSON list of expressions on standard input, and for each of them its
// first error, or null, on standard output. Called by tests/compose/test_prometheus_3.py.
import { parser } from "@prometheus-io/lezer-promql";
import { readFileSync } from "node:fs";

function firstError(expression) {
  let found = null;
  parser.parse(expression).iterate({
    enter(node) {
      if (node.type.isError && found === null) {
        found = `at ${node.from}: …${expression.slice(Math.max(0, node.from - 20), node.to + 20)}…`;
      }
    },
  });
  return found;
}

process.stdout.write(JSON.stringify(JSON.parse(readFileSync(0, "utf8")).map(firstError)));
