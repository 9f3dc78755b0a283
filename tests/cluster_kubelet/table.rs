//! The table of final statuses by kubelet and agent.

use crate::{
    compare::{Difference, differences},
    expected,
    run::Pair,
    scenario::Scenario,
};

/// Differences between the two.
pub fn found(pair: &Pair) -> Vec<Difference> {
    differences(&pair.kubelet.fields(), &pair.agent.fields())
}

#[allow(clippy::print_stdout, reason = "the table is what the run is for")]
pub fn print<'a>(rows: impl Iterator<Item = (&'a Scenario, &'a Pair)>) {
    println!("| scenario | kubelet | agent | differs |");
    println!("|---|---|---|---|");
    for (scenario, pair) in rows {
        let (kubelet, agent) = (pair.kubelet.summary(), pair.agent.summary());
        let agent = if kubelet == agent { "the same" } else { &agent };
        println!(
            "| {} | {kubelet} | {agent} | {} |",
            scenario.name,
            remarks(scenario.name, &found(pair))
        );
    }
}

/// The docs' name of an intended difference, else the field.
fn remarks(scenario: &str, found: &[Difference]) -> String {
    let remark = |difference: &Difference| {
        let meant = expected::ALL.iter().find(|it| it.explains(scenario, difference));
        meant.map_or_else(
            || format!("NOT MEANT: {}", difference.field),
            |it| it.situation.to_owned(),
        )
    };
    let mut remarks: Vec<_> = found.iter().map(remark).collect();
    remarks.sort();
    remarks.dedup();
    remarks.join("; ")
}
