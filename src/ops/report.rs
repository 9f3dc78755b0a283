//! `report`: how the kubelet's terminations compare with what the agent would have done.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::output::{Cell, age_since, cell, table, wide_cell};
use crate::{
    model::observation::{Difference, LeftoverKind, Observation, Verdict},
    words::{format_count, seconds},
};

/// The observed terminations of some time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The agent observes now. Otherwise these observations are from before.
    pub is_observing: bool,
    /// Its beginning.
    pub since: Timestamp,
    /// Its end.
    pub until: Timestamp,
    /// Number of terminations.
    pub terminations: u64,
    /// Number of further terminations that are not finished, or whose comparison is not.
    #[serde(default)]
    pub comparing: u64,
    /// Number of terminations by verdict.
    pub verdicts: Verdicts,
    /// The terminations, oldest first.
    pub observations: Vec<Observation>,
}

/// Number of terminations by verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Verdicts {
    /// The agent would have done the same.
    pub same: u64,
    /// The agent would have written another status.
    pub different: u64,
    /// Those of `different` that differ only as docs/explanation/kubelet-differences.md says.
    pub different_as_documented: u64,
    /// The kubelet has left something.
    pub leftovers: u64,
    /// Not all of it was seen.
    pub unknown: u64,
}

// === impl Report ===

impl Report {
    /// The report of the observations from `since` until now. `all` are in the order of their end.
    pub fn new(all: Vec<Observation>, is_observing: bool, since: Timestamp, now: Timestamp) -> Self {
        let observations: Vec<_> = all.into_iter().filter(|it| it.finished_at >= since).collect();
        let count = |is: &dyn Fn(&Observation) -> bool| observations.iter().filter(|it| is(it)).count() as u64;
        let of = |verdict| count(&|it| it.verdict == verdict);
        Self {
            is_observing,
            since,
            until: now,
            terminations: observations.len() as u64,
            comparing: 0,
            verdicts: Verdicts {
                same: of(Verdict::Same),
                different: of(Verdict::Different),
                different_as_documented: count(&Observation::differs_as_documented),
                leftovers: of(Verdict::Leftovers),
                unknown: of(Verdict::Unknown),
            },
            observations,
        }
    }
}

/// Formats the report: a summary, and a table of all terminations that are not the same, or of those with this verdict. `is_wide`:
/// with each difference and leftover, and the UID.
pub fn text(report: &Report, verdict: Option<Verdict>, is_wide: bool) -> String {
    let mut out = summary(report) + "\n";
    if !report.is_observing {
        out += "The agent does not observe now: it runs without --mode observe.\n";
    }
    let is_shown = |it: &&Observation| verdict.map_or(it.verdict != Verdict::Same, |verdict| it.verdict == verdict);
    let shown = report.observations.iter().filter(is_shown);
    let rows: Vec<_> = shown.flat_map(|it| rows(it, is_wide, report.until)).collect();
    if rows.is_empty() {
        return out;
    }
    out + "\n" + &table(rows, is_wide)
}

/// The rows of an observation. With details, each has a row: the first one has the other cells.
fn rows(it: &Observation, is_wide: bool, now: Timestamp) -> Vec<[Cell; 7]> {
    let lines = match (is_wide, details(it).as_slice()) {
        (_, []) => vec!["-".to_owned()],
        (false, [first, more @ ..]) if !more.is_empty() => vec![format!("{first} (and {} more)", more.len())],
        (_, details) => details.to_vec(),
    };
    let row = |(index, line): (usize, &String)| {
        let once = |text: String| if index == 0 { text } else { String::new() };
        let took = format!("{}/{}s", seconds(it.elapsed_ms), it.grace_seconds);
        [
            cell("NAMESPACE", once(it.namespace.clone())),
            cell("NAME", once(it.name.clone())),
            cell("AGE", once(age_since(it.finished_at, now))),
            cell("TOOK/GRACE", once(took)),
            cell("VERDICT", once(it.verdict.to_string())),
            wide_cell("UID", once(it.uid.clone())),
            cell("WHAT", line),
        ]
    };
    lines.iter().enumerate().map(row).collect()
}

/// One line, such as `142 terminations in 7d: 141 same, 1 with leftovers: 1 mount`.
fn summary(report: &Report) -> String {
    let Verdicts {
        same,
        different,
        different_as_documented,
        leftovers,
        unknown,
    } = report.verdicts;
    let time = age_since(report.since, report.until);
    let more = match report.comparing {
        0 => String::new(),
        1 => " (1 more is being compared)".to_owned(),
        more => format!(" ({more} more are being compared)"),
    };
    let count = format!("{} in {time}{more}", format_count(report.terminations, "termination"));
    if report.terminations == 0 {
        return count;
    }
    let mut kinds = BTreeMap::<LeftoverKind, u64>::new();
    for leftover in report.observations.iter().flat_map(|it| &it.leftovers) {
        *kinds.entry(leftover.kind).or_default() += 1;
    }
    let mut parts = vec![format!("{same} same")];
    if different > 0 {
        parts.push(match different_as_documented {
            0 => format!("{different} different"),
            all if all == different => format!("{different} different as documented"),
            some => format!("{different} different ({some} as documented)"),
        });
    }
    if unknown > 0 {
        parts.push(format!("{unknown} unknown"));
    }
    if leftovers > 0 {
        parts.push(format!("{leftovers} with leftovers: {}", kinds_of(&kinds)));
    }
    format!("{count}: {}", parts.join(", "))
}

fn kinds_of(kinds: &BTreeMap<LeftoverKind, u64>) -> String {
    let kinds = kinds.iter().map(|(kind, count)| match (kind, count) {
        (LeftoverKind::Directory, 2..) => format!("{count} directories"),
        (kind, count) => format_count(*count, &kind.to_string()),
    });
    kinds.collect::<Vec<_>>().join(", ")
}

/// Everything that the verdict is about, one on each line.
fn details(observation: &Observation) -> Vec<String> {
    let leftovers = observation.leftovers.iter();
    let leftovers = leftovers.map(|it| format!("left {} {}: {}", it.kind, it.object, it.detail));
    let differences = observation.differences.iter().map(difference);
    leftovers.chain(observation.reason.clone()).chain(differences).collect()
}

fn difference(difference: &Difference) -> String {
    let value = |value: &Option<String>| value.as_deref().unwrap_or("nothing").to_owned();
    let (kubelet, agent) = (value(&difference.kubelet), value(&difference.agent));
    let documented = difference.documented.as_ref();
    let documented = documented.map_or_else(String::new, |situation| format!(" (documented: {situation})"));
    format!("{}: kubelet {kubelet}, agent {agent}{documented}", difference.field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::observation::Leftover;

    const DAY: i64 = 24 * 3600;

    fn observation(name: &str, verdict: Verdict) -> Observation {
        Observation {
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            deleted_at: None,
            finished_at: Timestamp::from_second(29 * DAY).unwrap(),
            grace_seconds: 30,
            elapsed_ms: 2400,
            verdict,
            differences: Vec::new(),
            leftovers: Vec::new(),
            reason: None,
        }
    }

    fn difference(field: &str, documented: Option<&str>) -> Difference {
        Difference {
            field: field.to_owned(),
            kubelet: Some("137".to_owned()),
            agent: Some("3".to_owned()),
            documented: documented.map(str::to_owned),
        }
    }

    fn report(all: Vec<Observation>) -> Report {
        let at = |day: i64| Timestamp::from_second(day * DAY).unwrap();
        Report::new(all, true, at(23), at(30))
    }

    #[test]
    fn summary_counts_the_verdicts_and_names_what_is_left() {
        let mut left = observation("db-0", Verdict::Leftovers);
        left.leftovers = vec![Leftover {
            kind: LeftoverKind::Mount,
            object: "/pods/1/volumes/a".to_owned(),
            detail: "unmount it (tmpfs)".to_owned(),
        }];
        let mut documented = observation("loop", Verdict::Different);
        documented.differences = vec![difference("a", Some("real exit")), difference("b", Some("real exit"))];
        let same = observation("web-0", Verdict::Same);
        let with_left = report(vec![same.clone(), left.clone()]);
        assert_eq!(
            text(&with_left, None, false),
            "2 terminations in 7d: 1 same, 1 with leftovers: 1 mount\n\n\
             NAMESPACE   NAME   AGE   TOOK/GRACE   VERDICT     WHAT\n\
             shop        db-0   24h   2.4s/30s     leftovers   left mount /pods/1/volumes/a: unmount it (tmpfs)\n"
        );
        let mut different = documented.clone();
        different.differences[1].documented = None;
        let mut unknown = observation("late", Verdict::Unknown);
        unknown.reason = Some("it had begun before".to_owned());
        let all = report(vec![same, documented.clone(), different, unknown]);
        let shown = text(&all, None, false);
        let first = "4 terminations in 7d: 1 same, 2 different (1 as documented), 1 unknown\n";
        assert!(shown.starts_with(first), "{shown}");
        let first_difference = "different   a: kubelet 137, agent 3 (documented: real exit) (and 1 more)\n";
        assert!(shown.contains(first_difference), "{shown}");
        assert!(shown.contains("unknown     it had begun before\n"), "{shown}");
        let only = text(&all, Some(Verdict::Unknown), false);
        assert!(only.contains("late") && !only.contains("loop"), "{only}");
        let wide = text(&report(vec![documented, left]), None, true);
        assert!(
            wide.contains("uid-loop   a: kubelet 137, agent 3 (documented: real exit)\n"),
            "{wide}"
        );
        assert!(
            wide.contains("left mount /pods/1/volumes/a: unmount it (tmpfs)\n"),
            "{wide}"
        );
        assert_eq!(text(&report(vec![]), None, false), "0 terminations in 7d\n");
        let begun = |all, comparing| Report {
            comparing,
            ..report(all)
        };
        assert_eq!(
            text(&begun(vec![], 10), None, false),
            "0 terminations in 7d (10 more are being compared)\n"
        );
        let one = text(&begun(vec![observation("a", Verdict::Same)], 1), None, false);
        assert_eq!(one, "1 termination in 7d (1 more is being compared): 1 same\n");
    }

    #[test]
    fn older_observations_are_left_out() {
        let mut old = observation("old", Verdict::Same);
        old.finished_at = Timestamp::from_second(DAY).unwrap();
        assert_eq!(report(vec![old, observation("new", Verdict::Same)]).terminations, 1);
    }
}
