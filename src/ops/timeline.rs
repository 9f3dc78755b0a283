//! A teardown as bars over time. Pure.

use std::fmt::Write as _;

use crate::{
    ops::status::seconds,
    record::{Stage, Story},
};

/// Columns of the bars.
const WIDTH: u64 = 48;
/// Parts of a column that a terminal can draw.
const EIGHTHS: [char; 7] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉'];

/// Draws one story.
pub fn text(story: &Story) -> String {
    let mut out = String::new();
    let end = story
        .spans
        .iter()
        .filter_map(|span| span.end_ms)
        .chain([story.elapsed_ms])
        .max()
        .unwrap_or(0)
        .max(1);
    let state = match story.stage {
        Stage::Finished => format!("finished in {}", precise(story.elapsed_ms)),
        Stage::Deleted => format!("deleted, cleaning up for {}", precise(story.elapsed_ms)),
        Stage::Terminating | Stage::Terminated => format!("goes on since {}", precise(story.elapsed_ms)),
    };
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{}/{}  uid {}\nbegan {}, grace {} s, {state}, {} attempt{}",
        story.namespace,
        story.name,
        story.uid,
        story.began.strftime("%Y-%m-%d %H:%M:%S UTC"),
        story.grace_seconds,
        story.attempts,
        if story.attempts == 1 { "" } else { "s" },
    );
    let what_width = story
        .spans
        .iter()
        .map(|span| span.what.chars().count())
        .max()
        .unwrap_or(0);
    for span in &story.spans {
        let span_end = span.end_ms.unwrap_or(end);
        let _ = writeln!(
            out,
            "  {:8} {:what_width$} │{}│ {:>8} → {}{}",
            span.step,
            span.what,
            bar(span.start_ms, span_end, end),
            precise(span.start_ms),
            span.end_ms.map_or_else(|| "…".to_owned(), precise),
            span.failure
                .as_ref()
                .map(|why| format!("  ✗ {why}"))
                .unwrap_or_default(),
        );
    }
    for failure in &story.failures {
        let _ = writeln!(out, "  waits for: {failure}");
    }
    out
}

/// From `start` to `end` of `total`, never empty: what happened is seen, however short it was.
fn bar(start: u64, end: u64, total: u64) -> String {
    let column = (start * WIDTH / total).min(WIDTH - 1);
    let until = (end * WIDTH * 8 / total).max(column * 8 + 1);
    let count = |columns: u64| usize::try_from(columns).unwrap_or(0);
    let mut bar = " ".repeat(count(column)) + &"█".repeat(count(until / 8 - column));
    bar.extend(count(until % 8).checked_sub(1).map(|index| EIGHTHS[index]));
    let drawn = bar.chars().count();
    bar + &" ".repeat(count(WIDTH).saturating_sub(drawn))
}

/// Two digits after the point where that says something.
fn precise(ms: u64) -> String {
    if ms < 60_000 {
        format!("{}.{:02} s", ms / 1000, ms % 1000 / 10)
    } else {
        seconds(ms)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::record::{Span, Step};

    #[test]
    fn bars_lie_where_their_time_lies() {
        assert_eq!(bar(0, 100, 100), "█".repeat(48));
        assert_eq!(bar(50, 100, 100), format!("{}{}", " ".repeat(24), "█".repeat(24)));
        assert_eq!(bar(0, 0, 100).trim_end(), "▏", "an instant is seen");
        assert_eq!(bar(100, 100, 100).trim_start(), "█", "also at the very end");
    }

    #[test]
    fn a_story_reads_from_top_to_bottom() {
        let story = Story {
            namespace: "default".into(),
            name: "web-0".into(),
            uid: "1234".into(),
            began: "2026-01-02T03:04:05Z".parse().unwrap(),
            grace_seconds: 30,
            grace_left_ms: 0,
            stage: Stage::Finished,
            elapsed_ms: 2000,
            attempts: 1,
            failures: vec![],
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
        };
        let text = text(&story);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "default/web-0  uid 1234");
        assert_eq!(
            lines[1],
            "began 2026-01-02 03:04:05 UTC, grace 30 s, finished in 2.00 s, 1 attempt"
        );
        assert_eq!(
            lines[2],
            format!(
                "  hook     main │{}{}│   0.00 s → 1.00 s",
                "█".repeat(24),
                " ".repeat(24)
            )
        );
        assert!(lines[3].ends_with("1.99 s → 2.00 s  ✗ 409"), "{}", lines[3]);
    }

    proptest! {
        #[test]
        fn every_bar_has_the_same_width(start in 0u64..10_000, length in 0u64..10_000, more in 1u64..10_000) {
            let bar = bar(start, start + length, start + length + more);
            prop_assert_eq!(bar.chars().count(), 48, "{:?}", bar);
        }
    }
}
