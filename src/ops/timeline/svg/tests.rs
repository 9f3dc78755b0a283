//! Checks drawings by their parsed elements.

use proptest::prelude::*;
use roxmltree::{Document, Node};

use super::*;
use crate::model::trace::{Blocked, BlockedReason, Span};

fn span(step: Step, what: &str, start_ms: u64, end_ms: Option<u64>) -> Span {
    Span {
        step,
        what: what.to_owned(),
        start_ms,
        end_ms,
        failure: None,
    }
}

fn trace(elapsed_ms: u64, spans: Vec<Span>) -> Trace {
    Trace {
        elapsed_ms,
        spans,
        ..Trace::sample()
    }
}

fn is_bar(node: &Node<'_, '_>) -> bool {
    node.has_tag_name("rect") && node.attribute("class").is_some()
}

fn number(node: &Node<'_, '_>, name: &str) -> f64 {
    node.attribute(name).unwrap().parse().unwrap()
}

/// Left edge and width of each bar.
fn bars(drawing: &str) -> Vec<(f64, f64)> {
    let document = Document::parse(drawing).unwrap();
    let bars = document.descendants().filter(is_bar);
    bars.map(|bar| (number(&bar, "x"), number(&bar, "width"))).collect()
}

/// The texts of all elements of this name.
fn texts_of(drawing: &str, element: &str) -> Vec<String> {
    let document = Document::parse(drawing).unwrap();
    let found = document.descendants().filter(|node| node.has_tag_name(element));
    found.map(|node| node.text().unwrap_or_default().to_owned()).collect()
}

#[test]
fn bars_begin_and_last_in_proportion_to_their_times() {
    let spans = vec![
        span(Step::Hook, "main", 0, Some(2_000)),
        span(Step::Term, "main", 2_000, Some(8_000)),
        span(Step::Sandbox, "", 8_000, Some(9_000)),
    ];
    let bars = bars(&svg(&[trace(10_000, spans)]));
    let [hook, term, sandbox] = bars[..] else {
        panic!("{bars:?}")
    };
    for ((_, width), part) in [(hook, 0.2), (term, 0.6), (sandbox, 0.1)] {
        assert!((width - part * SCALE).abs() < 0.02, "{width} is not {part} of {SCALE}");
    }
    assert!(
        (hook.0 + hook.1 - term.0).abs() < 0.02,
        "one begins where the other ends"
    );
    assert!((sandbox.0 - hook.0 - 0.8 * SCALE).abs() < 0.02);
}

#[test]
fn each_step_and_container_has_a_line_with_its_times() {
    let mut failed = span(Step::Status, "", 8_000, Some(8_100));
    failed.failure = Some("500: try again".to_owned());
    let mut again = failed.clone();
    (again.start_ms, again.end_ms) = (9_000, Some(9_100));
    let spans = vec![
        span(Step::Term, "main", 0, Some(8_000)),
        span(Step::Term, "proxy", 0, Some(70)),
        failed,
        again,
        span(Step::Volumes, "data", 9_500, None),
    ];
    let mut trace = trace(10_000, spans);
    trace.blocked = vec![Blocked {
        step: Some(Step::Volumes),
        target: "data".to_owned(),
        ..Blocked::pod(BlockedReason::Failed, "in use by process 12")
    }];
    let drawing = svg(&[trace]);
    let texts = texts_of(&drawing, "text");
    for text in [
        "default/web-0  uid 1234",
        "began 2026-01-02 03:04:05 UTC (it was deleted), grace 30s, in progress for 10.00s, 1 attempt",
        "term     main",
        "  0.00s → 8.00s",
        "term     proxy",
        "  8.00s → 9.10s  ×2",
        "✗ 500: try again",
        "  9.50s → …",
        "waits for: volumes data: in use by process 12",
    ] {
        assert_eq!(texts.iter().filter(|it| *it == text).count(), 1, "{text}: {texts:?}");
    }
    let tooltips = texts_of(&drawing, "title");
    for tooltip in [
        "term main\n0.00s → 8.00s, 8.00s",
        "status\n✗ 500: try again\n9.00s → 9.10s, 0.10s",
        "volumes data\n9.50s → …, in progress",
    ] {
        assert!(tooltips.iter().any(|it| it == tooltip), "{tooltip}: {tooltips:?}");
    }
    let document = Document::parse(&drawing).unwrap();
    let heights: Vec<f64> = document
        .descendants()
        .filter(is_bar)
        .map(|bar| number(&bar, "y"))
        .collect();
    let [main, proxy, failed, again, volumes] = heights[..] else {
        panic!("{heights:?}")
    };
    assert!(main < proxy && proxy < failed && failed < volumes, "{heights:?}");
    assert!((failed - again).abs() < f64::EPSILON, "attempts are in one line");
}

#[test]
fn names_and_reasons_are_escaped() {
    let hostile = "</title><script>alert(1)</script>\"'&]]>\u{0}\u{1b}[2J\u{fffe}\u{202e}";
    let mut spans = vec![span(Step::Hook, hostile, 0, Some(10))];
    spans[0].failure = Some(hostile.to_owned());
    let trace = Trace {
        namespace: hostile.to_owned(),
        name: hostile.to_owned(),
        uid: hostile.to_owned(),
        reason: Some(hostile.to_owned()),
        phase: Some(hostile.to_owned()),
        waits_for_deletion: true,
        blocked: vec![Blocked::pod(BlockedReason::Failed, hostile)],
        ..trace(10, spans)
    };
    let drawing = svg(&[trace]);
    let document = Document::parse(&drawing).unwrap();
    let known = ["svg", "style", "rect", "line", "text", "g", "title"];
    for node in document.descendants().filter(Node::is_element) {
        assert!(known.contains(&node.tag_name().name()), "{node:?}");
        let refers = |name: &str| name.starts_with("on") || name == "href" || name == "style";
        assert!(!node.attributes().any(|it| refers(it.name())), "{node:?}");
    }
    let shown = "</title><script>alert(1)</script>\"'&]]>\\0\\u{1b}[2J\\u{fffe}\\u{202e}";
    assert!(
        texts_of(&drawing, "text").contains(&format!("{shown}/{shown}  uid {shown}")),
        "{drawing}"
    );
    assert!(texts_of(&drawing, "title").contains(&format!("hook {shown}\n✗ {shown}")));
}

#[test]
fn long_reason_is_truncated_in_the_drawing_and_complete_in_the_tooltip() {
    let long = "no ".repeat(5_000);
    let mut spans = vec![span(Step::Volumes, &long, 0, Some(10))];
    spans[0].failure = Some(long.clone());
    let drawing = svg(&[trace(10, spans)]);
    assert!(texts_of(&drawing, "title").iter().any(|it| it.contains(&long)));
    let document = Document::parse(&drawing).unwrap();
    assert!(number(&document.root_element(), "width") < 2_500.0);
}

#[test]
fn colors_of_all_steps_differ_clearly() {
    let channels = |step: Step| {
        let color = u32::from_str_radix(&color(step)[1..], 16).unwrap();
        [color >> 16, color >> 8 & 255, color & 255].map(f64::from)
    };
    for (index, one) in Step::ALL.into_iter().enumerate() {
        for other in &Step::ALL[..index] {
            let pairs = channels(one).into_iter().zip(channels(*other));
            let distance = pairs.map(|(one, other)| (one - other).powi(2)).sum::<f64>().sqrt();
            assert!(distance > 60.0, "{one} and {other}: {distance}");
        }
    }
}

#[test]
fn pods_of_the_same_name_are_drawn_below_each_other() {
    let one = trace(10, vec![span(Step::Delete, "", 0, Some(10))]);
    let other = Trace {
        uid: "5678".to_owned(),
        spans: Vec::new(),
        ..one.clone()
    };
    let drawing = svg(&[one, other]);
    let document = Document::parse(&drawing).unwrap();
    let titles = document
        .descendants()
        .filter(|node| node.attribute("class") == Some("t"));
    let heights: Vec<f64> = titles.map(|title| number(&title, "y")).collect();
    assert!(
        heights.len() == 2 && heights[0] + 3.0 * LINE < heights[1],
        "{heights:?}"
    );
    assert!(number(&document.root_element(), "height") > heights[1]);
}

#[test]
fn number_of_scale_lines_is_limited() {
    for end in [1, 7, 999, 8_430, 59_999, 3_599_000, 40 * DAY, 4_000 * DAY, u64::MAX / 2] {
        let lines = end / tick_interval(end);
        assert!(lines <= MAX_TICKS && (lines > 0 || end < DAY), "{end}: {lines}");
    }
}

proptest! {
    #[test]
    fn every_bar_is_visible_and_within_the_scale(
        spans in proptest::collection::vec((0u64..100_000, proptest::option::of(0u64..100_000)), 1..20),
        elapsed in 0u64..100_000,
    ) {
        let spans: Vec<Span> = spans
            .into_iter()
            .enumerate()
            .map(|(index, (start, length))| span(Step::Term, &format!("c{index:02}"), start, length.map(|length| start + length)))
            .collect();
        let left = MARGIN + 12.0 * LETTER + GAP;
        for (x, width) in bars(&svg(&[trace(elapsed, spans)])) {
            prop_assert!(width >= MIN_BAR - 0.01 && x >= left - 0.01 && x + width <= left + SCALE + 0.02, "{x} {width}");
        }
    }
}

#[test]
fn end_of_the_grace_period_is_a_line_over_all_rows() {
    let spans = vec![
        span(Step::Term, "main", 0, Some(2_000)),
        span(Step::Volumes, "data", 2_000, Some(10_000)),
    ];
    let drawing = |grace_end_ms| {
        svg(&[Trace {
            grace_end_ms,
            ..trace(10_000, spans.clone())
        }])
    };
    let with = drawing(Some(5_000));
    let document = Document::parse(&with).unwrap();
    let is_end = |node: &Node<'_, '_>| node.attribute("class") == Some("e");
    let line = document.descendants().find(is_end).unwrap();
    let (first, _) = bars(&with)[0];
    assert!(
        (number(&line, "x1") - first - SCALE / 2.0).abs() < 0.1,
        "in the middle of the scale"
    );
    let heights: Vec<f64> = document
        .descendants()
        .filter(is_bar)
        .map(|bar| number(&bar, "y"))
        .collect();
    assert!(number(&line, "y1") < heights[0] && number(&line, "y2") > heights[1] + BAR);
    assert!(texts_of(&with, "text").contains(&"  5.00s   grace period expires".to_owned()));
    for beyond in [None, Some(10_001)] {
        assert!(!drawing(beyond).contains("class=\"e\""), "{beyond:?}");
    }
}
