//! Alerts and the dashboard use only metrics that the agent exports.

use std::collections::{BTreeMap, BTreeSet};

use promql_parser::{
    label::{MatchOp, Matcher, Matchers},
    parser::{self, Expr, LabelModifier},
};
use serde_json::Value;

use super::full;
use crate::ops::metrics::text;

const ALERTS: [&str; 2] = [
    include_str!("../../../../monitoring/alerts.yaml"),
    include_str!("../../../../monitoring/gc-alerts.yaml"),
];
const RUNBOOK: &str = include_str!("../../../../docs/how-to/runbook.md");
const DASHBOARD: &str = include_str!("../../../../monitoring/dashboard.json");

/// Labels that Prometheus adds.
const SCRAPE_LABELS: [&str; 2] = ["instance", "job"];

fn alerts() -> Vec<Value> {
    let groups = ALERTS.iter().flat_map(|text| {
        let file: Value = serde_saphyr::from_str(text).unwrap();
        file["groups"].as_array().unwrap().clone()
    });
    let rules = |group: Value| group["rules"].as_array().unwrap().clone();
    groups.flat_map(rules).collect()
}

/// The labels of a metric with their values.
pub(super) type Labels = BTreeMap<String, BTreeSet<String>>;

/// The labels of every exported metric.
pub(super) fn exported() -> BTreeMap<String, Labels> {
    let mut exported = BTreeMap::<String, Labels>::new();
    let text = text(&full()).unwrap();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let Expr::VectorSelector(sample) = parser::parse(line.rsplit_once(' ').unwrap().0).unwrap() else {
            panic!("{line}")
        };
        let labels = exported.entry(sample.name.unwrap()).or_default();
        for Matcher { name, value, .. } in sample.matchers.matchers {
            labels.entry(name).or_default().insert(value);
        }
    }
    exported
}

/// A metric, and its label matchers with their values.
type Selector = (String, Vec<(String, Vec<String>)>);

fn selectors(expr: &Expr, found: &mut Vec<Selector>) {
    let select = |name: Option<&String>, matchers: &Matchers| {
        let label = |matcher: &Matcher| {
            let values = match &matcher.op {
                MatchOp::Equal | MatchOp::NotEqual => vec![matcher.value.clone()],
                MatchOp::Re(_) | MatchOp::NotRe(_) => matcher.value.split('|').map(str::to_owned).collect(),
            };
            (matcher.name.clone(), values)
        };
        (name.cloned().unwrap(), matchers.matchers.iter().map(label).collect())
    };
    match expr {
        Expr::VectorSelector(it) => found.push(select(it.name.as_ref(), &it.matchers)),
        Expr::MatrixSelector(it) => found.push(select(it.vs.name.as_ref(), &it.vs.matchers)),
        Expr::Aggregate(it) => {
            let mut grouped = Vec::new();
            selectors(&it.expr, &mut grouped);
            if let Some(LabelModifier::Include(labels)) = &it.modifier {
                for label in &labels.labels {
                    let ours = grouped.iter().any(|(metric, _)| has_label(metric, label));
                    assert!(ours, "no metric has the label {label}: {expr}");
                }
            }
            found.append(&mut grouped);
        }
        Expr::Unary(it) => selectors(&it.expr, found),
        Expr::Paren(it) => selectors(&it.expr, found),
        Expr::Subquery(it) => selectors(&it.expr, found),
        Expr::Binary(it) => {
            selectors(&it.lhs, found);
            selectors(&it.rhs, found);
        }
        Expr::Call(it) => it.args.args.iter().for_each(|arg| selectors(arg, found)),
        Expr::NumberLiteral(_) | Expr::StringLiteral(_) | Expr::Extension(_) => {}
    }
}

/// Checks that all metrics and labels of an expression exist, and returns the number of metrics.
fn check(expr: &str) -> usize {
    let exported = exported();
    // Grafana replaces it.
    let plain = expr.replace("$node", ".*");
    let parsed = parser::parse(&plain).unwrap_or_else(|error| panic!("{expr}: {error}"));
    let mut found = Vec::new();
    selectors(&parsed, &mut found);
    for (metric, labels) in found.iter().filter(|(metric, _)| metric != "up") {
        let exported = exported
            .get(metric)
            .unwrap_or_else(|| panic!("there is no metric {metric}"));
        for (label, value) in labels
            .iter()
            .filter(|(label, _)| !SCRAPE_LABELS.contains(&label.as_str()))
        {
            let values = exported
                .get(label)
                .unwrap_or_else(|| panic!("{metric} has no label {label}: {expr}"));
            for value in value {
                assert!(values.contains(value), "{metric} has no {label} {value:?}: {expr}");
            }
        }
    }
    found.len()
}

/// The labels that a template uses, as `$labels.step` or `step`.
fn labels_of(text: &str) -> impl Iterator<Item = &str> {
    let inside = text.split("{{").skip(1).filter_map(|text| text.split_once("}}"));
    inside
        .map(|(name, _)| name.trim())
        .filter(|name| !name.starts_with("$value"))
        .map(|name| name.trim_start_matches("$labels."))
}

fn has_label(expr: &str, label: &str) -> bool {
    let metrics = expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let exported = exported();
    let mut ours = metrics.filter_map(|word| exported.get(word));
    SCRAPE_LABELS.contains(&label) || ours.any(|labels| labels.contains_key(label))
}

#[test]
fn every_alert_uses_existing_metrics_and_labels_and_has_a_remedy() {
    let alerts = alerts();
    assert!(alerts.len() > 15, "{}", alerts.len());
    for alert in alerts {
        let expr = alert["expr"].as_str().unwrap();
        assert!(check(expr) > 0, "{expr}");
        let annotation = |field: &str| alert["annotations"][field].as_str().unwrap_or_default().to_owned();
        let (summary, remedy) = (annotation("summary"), annotation("description"));
        assert!(summary.len() > 20 && remedy.len() > 15, "{alert}");
        let anchor = alert["alert"].as_str().unwrap().to_lowercase();
        assert_eq!(annotation("runbook_url"), format!("docs/how-to/runbook.md#{anchor}"));
        let headings = RUNBOOK.lines().filter(|line| line.starts_with('#'));
        let mut anchors = headings.map(|line| line.trim_start_matches('#').trim().to_lowercase());
        assert!(anchors.any(|it| it == anchor), "the runbook has no section {anchor}");
        for label in labels_of(&summary) {
            assert!(has_label(expr, label), "{expr} has no label {label}");
        }
    }
}

#[test]
fn every_panel_uses_existing_metrics_and_labels() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() > 10);
    let panels = panels.iter().filter(|panel| panel["type"] != "row");
    for target in panels.flat_map(|panel| panel["targets"].as_array().unwrap()) {
        let expr = target["expr"].as_str().unwrap();
        assert!(check(expr) > 0, "{expr}");
        for label in labels_of(target["legendFormat"].as_str().unwrap()) {
            assert!(has_label(expr, label), "{expr} has no label {label}");
        }
    }
}
