use proptest::prelude::*;

use super::*;
use crate::model::trace::{Span, Step};

#[test]
fn bars_match_their_times() {
    assert_eq!(bar(0, 100, 100), "█".repeat(48));
    assert_eq!(bar(50, 100, 100), format!("{}{}", " ".repeat(24), "█".repeat(24)));
    assert_eq!(bar(0, 0, 100).trim_end(), "▏", "an instant is visible");
    assert_eq!(bar(100, 100, 100).trim_start(), "█", "also at the very end");
}

#[test]
fn timeline_shows_the_pod_its_state_and_each_step() {
    let trace = Trace {
        stage: Stage::Finished,
        elapsed_ms: 2000,
        phase: Some("Succeeded".into()),
        spans: vec![
            Span {
                step: Step::Hook,
                what: "main".into(),
                start_ms: 0,
                end_ms: Some(1000),
                failure: None,
            },
            Span {
                step: Step::Delete,
                what: String::new(),
                start_ms: 1990,
                end_ms: Some(2000),
                failure: Some("409".into()),
            },
        ],
        ..Trace::sample()
    };
    let text = text(&trace, false);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[0], "default/web-0  uid 1234");
    assert_eq!(
        lines[1],
        "began 2026-01-02 03:04:05 UTC (it was deleted), grace 30s, finished in 2.00s, 1 attempt"
    );
    assert_eq!(
        lines[2],
        format!("  hook     main │{}{}│   0.00s → 1.00s", "█".repeat(24), " ".repeat(24))
    );
    assert!(lines[3].ends_with("1.99s +10 ms  ✗ 409"), "{}", lines[3]);
    let kept = Trace {
        stage: Stage::Terminated,
        waits_for_deletion: true,
        finalizers: Vec::new(),
        reason: Some("Evicted".into()),
        ..trace
    };
    let text = super::text(&kept, false);
    assert!(
        text.contains("grace 30s, terminated as Succeeded (Evicted) in 2.00s, awaits its deletion, 1 attempt"),
        "{text}"
    );
}

#[test]
fn durations_stand_instead_of_two_equal_times() {
    let row = |times: &[(u64, Option<u64>)]| {
        let row = Row {
            step: Step::Status,
            what: "",
            failure: None,
            times: times.to_vec(),
        };
        row.times_text().trim_start().to_owned()
    };
    for (times, text) in [
        (
            &[(92_100, Some(92_110)), (92_200, Some(92_240))][..],
            "1m32s +50 ms  ×2",
        ),
        (&[(92_100, Some(92_900))], "1m32s +800 ms"),
        (&[(3_600_000, Some(3_640_000))], "1h0m +40.00s"),
        (&[(1_000, Some(1_005)), (1_006, Some(1_009))], "1.00s +8 ms  ×2"),
        (&[(1_000, Some(1_005)), (2_000, Some(2_005))], "1.00s → 2.00s  ×2"),
        (&[(92_100, Some(92_110)), (92_200, None)], "1m32s → …  ×2"),
    ] {
        assert_eq!(row(times), text);
    }
}

#[test]
fn time_until_a_takeover_is_named() {
    let trace = |start_ms| Trace {
        elapsed_ms: 46_000,
        spans: vec![Span {
            step: Step::Term,
            what: "main".into(),
            start_ms,
            end_ms: Some(46_000),
            failure: None,
        }],
        ..Trace::sample()
    };
    let head = |start_ms| text(&trace(start_ms), false).lines().nth(1).unwrap().to_owned();
    assert!(
        head(45_440).ends_with(", 1 attempt, its first step began after 45.44s"),
        "{}",
        head(45_440)
    );
    assert!(head(400).ends_with(", 1 attempt"), "{}", head(400));
}

#[test]
fn grace_period_that_has_not_begun_and_the_kubelets_are_named_so() {
    for (grace_counted_from, expected) in [
        (GraceStart::NotBegun, "grace 30s (not begun), "),
        (
            GraceStart::DeleteRequest,
            "grace 30s (12.0s left, as the kubelet counts it), ",
        ),
        (GraceStart::Termination, "grace 30s, "),
    ] {
        let text = text(
            &Trace {
                grace_left_ms: 12_000,
                grace_counted_from,
                ..Trace::sample()
            },
            false,
        );
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn end_of_the_grace_period_is_a_line_where_it_lies_on_the_time_scale() {
    let span = |start_ms, end_ms| Span {
        step: Step::Term,
        what: "main".into(),
        start_ms,
        end_ms: Some(end_ms),
        failure: None,
    };
    let trace = |grace_end_ms| Trace {
        elapsed_ms: 4000,
        grace_end_ms: Some(grace_end_ms),
        spans: vec![span(0, 1000), span(1900, 4000)],
        ..Trace::sample()
    };
    let drawn = text(&trace(2000), false);
    let lines: Vec<_> = drawn.lines().skip(2).collect();
    assert!(lines[0].contains(&format!("│{}", "█".repeat(12))), "{drawn}");
    let line = format!(
        "  grace         │{}┊{}│   2.00s   grace period expires",
        " ".repeat(24),
        " ".repeat(23)
    );
    assert_eq!(lines[1], line);
    let early = text(&trace(1500), false);
    assert!(early.lines().nth(2).unwrap().contains("······┊···█"), "{early}");
    assert!(!text(&trace(30_000), false).contains("expires"), "beyond the scale");
}

#[test]
fn repeated_failures_share_a_line_with_dots_between_attempts() {
    let span = |step, start_ms, failure: Option<&str>| Span {
        step,
        what: String::new(),
        start_ms,
        end_ms: Some(start_ms + 10),
        failure: failure.map(str::to_owned),
    };
    let spans = [
        span(Step::Sandbox, 0, None),
        span(Step::Status, 10, Some("500")),
        span(Step::Sandbox, 40, None),
        span(Step::Status, 50, Some("500")),
        span(Step::Status, 80, None),
    ];
    let rows = rows(&spans);
    let drawn: Vec<_> = rows
        .iter()
        .map(|row| (row.step, row.failure, row.times.len()))
        .collect();
    let expected = [
        (Step::Sandbox, None, 2),
        (Step::Status, Some("500"), 2),
        (Step::Status, None, 1),
    ];
    assert_eq!(drawn, expected);
    let line = bars(&rows[0].times, 96);
    assert_eq!(line.trim_end(), format!("█████{}█████", "·".repeat(15)));
    assert_eq!(line.chars().count(), 48);
}

#[test]
fn wide_timeline_has_a_line_and_a_duration_for_each_attempt() {
    let span = |start_ms, end_ms| Span {
        step: Step::Sandbox,
        what: String::new(),
        start_ms,
        end_ms,
        failure: None,
    };
    let trace = Trace {
        elapsed_ms: 4000,
        spans: vec![span(0, Some(40)), span(1000, Some(2500)), span(3000, None)],
        ..Trace::sample()
    };
    let wide = text(&trace, true);
    let ends: Vec<_> = wide
        .lines()
        .skip(2)
        .filter_map(|line| line.rsplit('│').next())
        .collect();
    assert_eq!(
        ends,
        [
            "   0.00s →   0.04s    40 ms",
            "   1.00s →   2.50s    1.50s",
            "   3.00s → …"
        ],
        "{wide}"
    );
    assert_eq!(
        text(&trace, false).lines().skip(2).count(),
        1,
        "one line for equal spans"
    );
}

proptest! {
    #[test]
    fn every_bar_has_the_same_width(start in 0u64..10_000, length in 0u64..10_000, more in 1u64..10_000) {
        let bar = bar(start, start + length, start + length + more);
        prop_assert_eq!(bar.chars().count(), 48, "{:?}", bar);
    }
}
