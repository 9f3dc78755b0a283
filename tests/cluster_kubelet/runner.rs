//! Runs both halves and checks each scenario as a test; prints a table of all.

use std::{process::ExitCode, time::Duration};

use anyhow::{Context, Error, Result, ensure};
use testbed::claims::{self, Arguments, Claim, Limits};
use tokio::{sync::OnceCell, time};

use crate::{
    compare::Difference,
    expected,
    half::Outcome,
    observe::{self, Observed},
    run::{Pair, Report, run},
    scenario::Scenario,
    table,
};

/// A run takes three minutes; the margin is for a machine under load.
const LIMIT: Duration = Duration::from_secs(900);
/// All claims wait for the same run, which may be repeated.
const LIMITS: Limits = Limits {
    at_once: 2,
    time: LIMIT.saturating_mul(3),
};
/// Exit code of SIGKILL in an outcome's summary.
const KILLED: &str = "=137/";
const DOCS: &str = include_str!("../../docs/explanation/kubelet-differences.md");

/// What the claims share.
struct Shared {
    scenarios: Vec<Scenario>,
    // The error as text, since every claim reports it.
    report: OnceCell<Result<Report, String>>,
    observed: Observed,
}

/// The main function of the test binary.
pub fn main(scenarios: Vec<Scenario>) -> Result<ExitCode> {
    let arguments = Arguments::from_args();
    let docs = docs(&scenarios);
    // With a filter only the selected scenarios run.
    let wanted = |scenario: &Scenario| {
        let name = claim(scenario);
        arguments.filter.as_ref().is_none_or(|part| name.contains(part))
            && !arguments.skip.iter().any(|part| name.contains(part))
    };
    let shared = Shared {
        scenarios: scenarios.into_iter().filter(wanted).collect(),
        report: OnceCell::new(),
        observed: Observed::new(),
    };
    let scenarios = shared.scenarios.iter().enumerate();
    let mut claims: Vec<_> = scenarios
        .map(|(index, scenario)| Claim::new(claim(scenario), move |shared: &Shared| Box::pin(shared.judge(index))))
        .collect();
    claims.push(Claim::new("the_docs_tell_of_every_difference_that_is_meant", |_| {
        Box::pin(async { docs.map_err(Error::msg) })
    }));
    claims.push(Claim::new(
        "a_kubelet_of_the_testbed_changes_nothing_on_the_machine",
        |shared: &Shared| Box::pin(shared.machine()),
    ));
    for (name, check) in observe::CLAIMS {
        let name = format!("an_agent_that_only_observes::{name}");
        claims.push(Claim::new(name, move |shared: &Shared| {
            Box::pin(async move { shared.observed.check(check).await.map_err(Error::msg) })
        }));
    }
    claims::run(&LIMITS, shared, claims, async |shared| {
        if let Some(Ok(report)) = shared.report.get() {
            table::print(shared.scenarios.iter().zip(&report.pairs));
        }
        Ok(())
    })
}

fn claim(scenario: &Scenario) -> String {
    format!("the_agent_leaves_what_the_kubelet_leaves::{}", scenario.name)
}

fn docs(scenarios: &[Scenario]) -> Result<(), String> {
    let mut wrong = Vec::new();
    for expected in expected::ALL {
        if !DOCS.contains(&format!("| {} |", expected.situation)) {
            wrong.push(format!(
                "docs/explanation/kubelet-differences.md has no line {:?}",
                expected.situation
            ));
        }
        let unknown = |name: &&&str| scenarios.iter().all(|scenario| scenario.name != **name);
        let names = expected.scenarios.iter().filter(unknown);
        wrong.extend(names.map(|name| format!("there is no scenario {name}")));
    }
    if wrong.is_empty() {
        Ok(())
    } else {
        Err(wrong.join("\n"))
    }
}

impl Shared {
    async fn report(&self) -> Result<&Report> {
        let run = || async { self.run().await.map_err(|error| format!("{error:#}")) };
        self.report
            .get_or_init(run)
            .await
            .as_ref()
            .map_err(|error| Error::msg(error.clone()))
    }

    /// Runs both halves, once more if all that is wrong may be by chance.
    async fn run(&self) -> Result<Report> {
        let first = self.run_once().await?;
        let pairs = self.scenarios.iter().zip(&first.pairs);
        let wrong: Vec<_> = pairs
            .filter(|(scenario, pair)| !wrong(scenario, pair).is_empty())
            .collect();
        if wrong.is_empty() || !wrong.iter().all(|(scenario, pair)| is_by_chance(scenario, pair)) {
            return Ok(first);
        }
        let names: Vec<_> = wrong.iter().map(|(scenario, _)| scenario.name).collect();
        eprintln!("Both halves are repeated, because of {names:?}");
        let mut second = self.run_once().await?;
        second.changed.splice(0..0, first.changed);
        Ok(second)
    }

    async fn run_once(&self) -> Result<Report> {
        let run = time::timeout(LIMIT, run(&self.scenarios)).await;
        run.context("it is not over in time")?
    }

    async fn machine(&self) -> Result<()> {
        let changed = &self.report().await?.changed;
        ensure!(changed.is_empty(), "{}", changed.join("\n"));
        Ok(())
    }

    async fn judge(&self, index: usize) -> Result<()> {
        let pair = &self.report().await?.pairs[index];
        let wrong = wrong(&self.scenarios[index], pair);
        ensure!(wrong.is_empty(), "field: kubelet / agent\n{}", wrong.join("\n"));
        Ok(())
    }
}

/// Differences that are not expected, and expected ones that do not occur.
fn wrong(scenario: &Scenario, pair: &Pair) -> Vec<String> {
    let found = table::found(pair);
    let unexplained = found.iter().filter(|difference| {
        let mut meant = expected::ALL.iter();
        !meant.any(|expected| expected.explains(scenario.name, difference))
    });
    let mut wrong: Vec<_> = unexplained.map(ToString::to_string).collect();
    let missing = expected::ALL
        .iter()
        .flat_map(|expected| expected.missing(scenario.name, &found));
    wrong.extend(missing.map(|missing| format!("expected, but does not occur: {missing}")));
    wrong
}

/// Whether a busy machine may have changed the result. A container may not have exited within the second that the kubelet
/// gives it in an eviction. Or the kubelet's garbage collection removed a pod's sandbox, and with it the address (see
/// `sweeps`).
fn is_by_chance(scenario: &Scenario, pair: &Pair) -> bool {
    let is_killed = |outcome: &Outcome| outcome.summary().contains(KILLED);
    let is_late = scenario.eviction.is_some() && (is_killed(&pair.kubelet) || is_killed(&pair.agent));
    let is_swept = |difference: &Difference| {
        difference.field == "podIP" && difference.kubelet.is_none() && difference.agent.is_some()
    };
    is_late || table::found(pair).iter().any(is_swept)
}
