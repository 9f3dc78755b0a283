use super::*;

fn span(step: Step, what: &str, start_ms: u64, end_ms: Option<u64>, failure: Option<&str>) -> Span {
    Span {
        step,
        what: what.to_owned(),
        start_ms,
        end_ms,
        failure: failure.map(str::to_owned),
    }
}

#[test]
fn timeline_shows_the_pod_its_state_and_each_step() {
    let trace = Trace {
        stage: Stage::Finished,
        elapsed_ms: 2000,
        phase: Some("Succeeded".into()),
        spans: vec![
            span(Step::Hook, "main", 0, Some(1000), None),
            span(Step::Delete, "", 1990, Some(2000), Some("409")),
        ],
        ..Trace::sample()
    };
    let bar = format!("{}{}", "█".repeat(24), " ".repeat(24));
    let expected = format!(
        "default/web-0  uid 1234\n\
         began 2026-01-02 03:04:05 UTC (it was deleted), grace 30s, finished in 2.00s, 1 attempt\n  \
         hook     main │{bar}│   0.00s +1.00s\n  \
         delete        │{}█│   1.99s +10 ms  ✗ 409\n",
        " ".repeat(47)
    );
    assert_eq!(text(&trace, false), expected);
    let kept = Trace {
        stage: Stage::Terminated,
        waits_for_deletion: true,
        reason: Some("Evicted".into()),
        ..trace
    };
    let text = text(&kept, false);
    let state = "terminated as Succeeded (Evicted) in 2.00s, awaits its deletion, 1 attempt";
    assert!(text.contains(state), "{text}");
}

#[test]
fn grace_period_that_has_not_begun_is_named_so() {
    let trace = Trace {
        grace_left_ms: 12_000,
        ..Trace::sample()
    };
    assert!(text(&trace, false).contains("grace 30s (not begun), "));
}

#[test]
fn end_of_the_grace_period_is_a_line_where_it_lies_on_the_time_scale() {
    let trace = |grace_end_ms| Trace {
        elapsed_ms: 4800,
        grace_end_ms: Some(grace_end_ms),
        spans: vec![
            span(Step::Term, "main", 0, Some(1000), None),
            span(Step::Term, "main", 1900, Some(4800), None),
        ],
        ..Trace::sample()
    };
    let drawn = text(&trace(1500), false);
    let line = format!("{}·····┊···{}", "█".repeat(10), "█".repeat(29));
    assert!(drawn.contains(&line), "{drawn}");
    assert!(
        drawn.contains("┊") && drawn.contains("│   1.50s grace period expires\n"),
        "{drawn}"
    );
    assert!(!text(&trace(30_000), false).contains("expires"), "beyond the scale");
}

#[test]
fn equal_spans_share_a_line_except_in_a_wide_timeline() {
    let trace = Trace {
        elapsed_ms: 4000,
        spans: vec![
            span(Step::Sandbox, "", 0, Some(40), None),
            span(Step::Status, "", 50, Some(60), Some("500")),
            span(Step::Sandbox, "", 1000, Some(2500), None),
            span(Step::Status, "", 2600, Some(2610), Some("500")),
            span(Step::Status, "", 3000, None, None),
        ],
        ..Trace::sample()
    };
    let ends = |is_wide| {
        let text = text(&trace, is_wide);
        let lines = text.lines().skip(2).filter_map(|line| line.rsplit("│ ").next());
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        ends(false),
        ["  0.00s +1.54s  ×2", "  0.05s +20 ms  ×2  ✗ 500", "  3.00s …"]
    );
    assert_eq!(ends(true).len(), 5);
    assert_eq!(ends(true)[2], "  1.00s +1.50s");
}

#[test]
fn terminations_are_listed_by_their_beginning() {
    let entry = |name: &str, minute: &str, stage| Trace {
        name: name.to_owned(),
        began: format!("2026-01-02T03:{minute}:00Z").parse().unwrap(),
        stage,
        elapsed_ms: 2_340,
        ..Trace::sample()
    };
    let entries = [entry("b", "20", Stage::Terminating), entry("a", "10", Stage::Finished)];
    let now = "2026-01-02T03:20:30Z".parse().unwrap();
    assert_eq!(
        list(&entries, None, false, now),
        "NAMESPACE   NAME   STATE         DURATION   GRACE   AGE\n\
         default     a      finished      2.34s      30s     10m\n\
         default     b      terminating   2.34s      30s     30s\n"
    );
    let wide = list(&entries, Some("default"), true, now);
    assert!(wide.contains("1234   it was deleted"), "{wide}");
    assert!(list(&entries, Some("other"), false, now).starts_with("No termination is known"));
}

#[test]
fn svg_has_each_span_with_its_times_and_no_text_breaks_it() {
    let trace = Trace {
        spans: vec![
            span(Step::Volumes, "<a & \"b\"\u{1b}>", 0, Some(1000), Some("it's <busy>\n")),
            span(Step::Volumes, "data", 1000, None, None),
        ],
        ..Trace::sample()
    };
    let drawn = svg(&[trace.clone(), trace.clone()]);
    assert_eq!(drawn.matches("<rect x=").count(), 2 * trace.spans.len(), "{drawn}");
    assert!(
        drawn.contains("&lt;a &amp; &quot;b&quot;") && drawn.contains("it's &lt;busy&gt;"),
        "{drawn}"
    );
    assert!(!drawn.contains('\u{1b}') && !drawn.contains("<busy"), "{drawn}");
    roxmltree::Document::parse(&drawn).unwrap();
}
