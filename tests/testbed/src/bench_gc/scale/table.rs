//! The cost of a million objects, as a table.

use std::fmt;

use serde::Serialize;

use super::{Scale, ScaleResult};
use crate::bench::figures::Figures;
use crate::bench::line::{Goal, Line, table};

/// Bytes per object.
const BYTES: f64 = 200.0;
/// Events cost the same in a graph of any size, apart from more cache misses.
const EVENT: f64 = 1.5;
/// The first of a million dependents are deleted as fast as those of an owner without more, within the variance of a
/// run.
const RATE: f64 = 0.9;
/// Seconds until synced at a server that limits requests.
const LIMITED_START: f64 = 60.0;
const MIB: f64 = 1024.0 * 1024.0;

/// Lines with a title.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    title: String,
    lines: Vec<Line>,
}

// === impl Scale ===

impl Scale {
    /// A table per arrangement.
    pub fn tables(&self) -> Vec<Table> {
        let small = vec![
            line("resident with no objects", "MiB", [self.none], None),
            line("event", "µs", self.few.event.clone(), None),
        ];
        let first = vec![line("deletion", "/s", self.first.rate, None)];
        let large = [&self.shared, &self.half, &self.all].map(|result| (result, self.lines_of(result)));
        let start = Some(Goal::AtMost(LIMITED_START));
        let bytes = Some(Goal::AtMost(BYTES));
        let limited = vec![
            line(
                "start until synced at 100 requests per second",
                "s",
                [self.limited.start],
                start,
            ),
            line("resident for each object", "B", [self.bytes(&self.limited)], bytes),
        ];
        [(&self.few, small), (&self.first, first)]
            .into_iter()
            .chain(large)
            .chain([(&self.limited, limited)])
            .map(|(result, lines)| Table {
                title: format!("The agent and {} in memory", result.object_set),
                lines,
            })
            .collect()
    }

    fn bytes(&self, result: &ScaleResult) -> f64 {
        (result.resident - self.none) * MIB / f64::from(result.object_set.objects)
    }

    fn lines_of(&self, result: &ScaleResult) -> Vec<Line> {
        let few = Figures::of(self.few.event.iter().copied()).median;
        let ratios = result.event.iter().map(|event| event / few);
        let bytes = self.bytes(result);
        let mut lines = vec![
            line("start until synced", "s", [result.start], None),
            line("resident, settled", "MiB", [result.resident], None),
            line("resident, peak at the start", "MiB", [result.peak_start], None),
            line("resident, peak", "MiB", [result.peak], None),
            line("resident for each object", "B", [bytes], Some(Goal::AtMost(BYTES))),
            line("event", "µs", result.event.clone(), None),
            line(
                "event / event in the small graph",
                "",
                ratios,
                Some(Goal::AtMost(EVENT)),
            ),
        ];
        if let (Some(rate), Some(first)) = (result.rate, self.first.rate) {
            let goal = Some(Goal::AtLeast(RATE));
            lines.push(line("deletion of the first ones", "/s", [rate], None));
            lines.push(line("the same / of an owner of no more", "", [rate / first], goal));
        }
        lines
    }
}

// === impl Table ===

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&table(&self.title, &self.lines))
    }
}

fn line(what: &str, unit: &'static str, values: impl IntoIterator<Item = f64>, goal: Option<Goal>) -> Line {
    Line {
        what: what.to_owned(),
        unit,
        figures: Figures::of(values),
        goal,
    }
}

#[cfg(test)]
mod tests {
    use super::super::object_set::ObjectSet;
    use super::*;

    #[test]
    fn only_memory_added_by_objects_counts_per_object() {
        let result = |objects: u32, resident, rate| ScaleResult {
            object_set: ObjectSet::new(1, objects, objects),
            start: 1.0,
            resident,
            peak_start: resident,
            peak: resident,
            event: vec![2.0, 3.0, 4.0],
            rate,
        };
        let large = || result(1_048_576, 210.0, Some(950.0));
        let scale = Scale {
            none: 10.0,
            few: result(10_000, 11.0, None),
            first: result(20_000, 12.0, Some(1000.0)),
            shared: large(),
            half: large(),
            all: large(),
            limited: large(),
        };
        let text: String = scale.tables().iter().map(Table::to_string).collect();
        assert!(text.contains("200 B") && text.contains("≤ 200 B: met"), "{text}");
        assert!(text.contains("≥ 0.90: met") && text.contains("≤ 1.50: met"), "{text}");
    }
}
