"""Reads metrics on standard input with Prometheus's own parser, and prints all samples as JSON.

    PYTHONPATH=<prometheus-client> http_metrics.py < metrics
"""

import json
import sys

from prometheus_client.parser import text_string_to_metric_families

samples = []
for family in text_string_to_metric_families(sys.stdin.read()):
    assert family.documentation and family.type != "unknown", family
    samples += [(sample.name, sample.labels, sample.value) for sample in family.samples]
json.dump(samples, sys.stdout)
