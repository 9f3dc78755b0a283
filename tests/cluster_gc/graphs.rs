//! Hundreds of small random graphs at once. After every deletion, the objects that a collector leaves are compared with
//! all outcomes that the rules in `model` allow, in any order of steps. kube-controller-manager is checked against the
//! same rules.
//!
//! `CLUSTER_GC_FIRST=N` starts with this seed, `CLUSTER_GC_GRAPHS=N` sets the number of graphs. A failure prints its
//! seed.

#![allow(clippy::print_stdout, reason = "seeds are printed to repeat a failure")]

mod field;
mod model;
mod plan;

use std::{
    collections::{HashMap, HashSet},
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use testbed::{
    api::ApiServer as _,
    control_plane::{ControlPlane, Settings},
    rest::{Client, Patch},
};
use tokio::time::{Instant, sleep};

use self::{
    field::{Graph, OTHER},
    model::World,
    plan::{KINDS, Plan},
};
use crate::{
    agent::{Agent, account},
    definitions::Things,
    scene::{LIMIT, eventually, in_namespace},
};

const GRAPHS: u64 = 240;
/// Deletions in a row before the test finalizers are removed.
const STEPS: usize = 4;
/// Requests in flight.
const AT_ONCE: usize = 16;
/// kube-controller-manager does not report when it is idle. It might still change a graph after this time.
const SETTLE_TIME: Duration = Duration::from_secs(3);
const FENCE: &str = "fence";

/// The collector under test.
#[derive(Clone, Copy)]
enum Collector<'a> {
    Agent(&'a Agent),
    Original,
}

/// A graph in its last state, with all allowed outcomes.
struct TestedGraph {
    graph: Graph,
    seen: World,
    /// `None` if there are too many.
    outcomes: Option<HashSet<World>>,
}

fn number(variable: &str) -> Result<Option<u64>> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(None);
    };
    Ok(Some(text.parse().with_context(|| format!("{variable}={text}"))?))
}

/// New seeds in each run, the same for both claims.
fn plans() -> Result<Vec<Plan>> {
    static NOW: OnceLock<u64> = OnceLock::new();
    let now = || jiff::Timestamp::now().as_second().unsigned_abs();
    let first = number("CLUSTER_GC_FIRST")?.unwrap_or_else(|| *NOW.get_or_init(now) * 1000);
    let many = number("CLUSTER_GC_GRAPHS")?.unwrap_or(GRAPHS);
    println!("CLUSTER_GC_FIRST={first} CLUSTER_GC_GRAPHS={many}");
    Ok((first..first + many).map(|seed| Plan::new(seed, STEPS)).collect())
}

pub async fn the_collector_leaves_of_random_graphs_only_what_the_rules_allow() -> Result<()> {
    let (plane, admin) = start_control_plane().await?;
    let mut agent = Agent::start(&account(&plane).await?, "always")?;
    agent.until_synced().await?;
    agent.during(play(&admin, plans()?, Collector::Agent(&agent))).await?;
    agent.stop().await
}

pub async fn kube_controller_manager_leaves_of_the_same_graphs_only_what_the_rules_allow() -> Result<()> {
    let (plane, admin) = start_control_plane().await?;
    let settings = Settings::only_the_collector().without_limits();
    let manager = plane.start_controllers(&settings).await?;
    let mut plans = plans()?;
    plans.retain(Plan::suits_kube_controller_manager);
    ensure!(
        plans.len() > 20 || number("CLUSTER_GC_GRAPHS")?.is_some(),
        "too few suit it: {}",
        plans.len()
    );
    manager.during(play(&admin, plans, Collector::Original)).await
}

/// A control plane with the graphs' custom kinds.
async fn start_control_plane() -> Result<(ControlPlane, Client)> {
    let plane = ControlPlane::start().await?;
    let admin = plane.admin()?;
    Things::define(&admin, "leaf.test", true, &["v1", "v1beta1"]).await?;
    Things::define(&admin, "root.test", false, &["v1"]).await?;
    for name in [OTHER, FENCE] {
        admin
            .create("/api/v1/namespaces", &json!({"metadata": {"name": name}}))
            .await?
            .ok()?;
    }
    for kind in KINDS {
        let (version, kind_name) = kind.called(false);
        let fence = json!({"apiVersion": version, "kind": kind_name, "metadata": {"name": FENCE}});
        let path = in_namespace(kind.resource(), if kind.is_namespaced() { FENCE } else { "" });
        admin.create(&path, &fence).await?.ok()?;
    }
    Ok((plane, admin))
}

async fn play(admin: &Client, plans: Vec<Plan>, collector: Collector<'_>) -> Result<()> {
    let begin = Instant::now();
    let made = stream::iter(plans.into_iter().enumerate()).map(|(at, plan)| {
        let name = format!("graph-{at}");
        async move {
            let seed = plan.seed;
            let made = Graph::make(admin, plan, name).await;
            made.with_context(|| format!("make graph {seed}"))
        }
    });
    let graphs: Vec<Graph> = made.buffer_unordered(AT_ONCE).try_collect().await?;
    let mut tested_graphs: Vec<TestedGraph> = graphs.into_iter().map(TestedGraph::new).collect();
    let creation = begin.elapsed();
    let mut judged = settle(admin, &mut tested_graphs, collector).await?;
    let mut certain = 0;
    for step in 0..=STEPS {
        let moved = stream::iter(&mut tested_graphs).map(|tested_graph| tested_graph.next_step(admin, step, collector));
        moved.buffer_unordered(AT_ONCE).try_collect::<Vec<()>>().await?;
        certain += tested_graphs
            .iter()
            .filter(|tested_graph| tested_graph.has_one_outcome())
            .count();
        judged += settle(admin, &mut tested_graphs, collector).await?;
    }
    let left: usize = tested_graphs
        .iter()
        .map(|tested_graph| tested_graph.seen.iter().flatten().count())
        .sum();
    println!(
        "{} graphs, created after {creation:.1?}, judged {judged} times after {:.1?}; {left} objects are left",
        tested_graphs.len(),
        begin.elapsed()
    );
    let all = tested_graphs.len() * (STEPS + 2);
    // Where more outcomes are allowed, the check shows less.
    let after = tested_graphs.len() * (STEPS + 1);
    println!("after {certain} of {after} deletions only one end was allowed");
    ensure!(
        certain * 10 >= after * 9,
        "after {certain} of {after} deletions only one end was allowed"
    );
    ensure!(judged * 50 >= all * 49, "only {judged} of {all} could be judged");
    Ok(())
}

/// Waits until nothing changes, and checks the graphs. Returns how many of them could be checked.
async fn settle(admin: &Client, tested_graphs: &mut [TestedGraph], collector: Collector<'_>) -> Result<usize> {
    match collector {
        Collector::Agent(agent) => until_idle(admin, agent).await?,
        Collector::Original => {
            // A graph that never settles is reported below.
            let fits = eventually(LIMIT, "the graphs to be settled", async || {
                let all = field::read(admin).await?;
                let mut wrong = 0;
                for tested_graph in tested_graphs.iter() {
                    wrong += usize::from(!tested_graph.allows(&tested_graph.graph.world(&all)?));
                }
                Ok((wrong == 0).then_some(()))
            });
            drop(fits.await);
            sleep(SETTLE_TIME).await;
        }
    }
    let all = field::read(admin).await?;
    let mut wrong = Vec::new();
    let mut judged = 0;
    for tested_graph in tested_graphs {
        let now = tested_graph.graph.world(&all)?;
        judged += usize::from(tested_graph.outcomes.is_some());
        if !tested_graph.allows(&now) {
            wrong.push(tested_graph.violation(&now));
        }
        tested_graph.seen = now;
    }
    if !wrong.is_empty() {
        bail!("{} graphs are not as they may be:\n{}", wrong.len(), wrong.join("\n"));
    }
    Ok(judged)
}

/// Waits until the agent is synced and idle, twice in a row without a change in between.
async fn until_idle(admin: &Client, agent: &Agent) -> Result<()> {
    let mut before = Value::Null;
    for time in 0_u32.. {
        let mut fences = HashMap::new();
        for kind in KINDS {
            let all = in_namespace(kind.resource(), if kind.is_namespaced() { FENCE } else { "" });
            // Named by the clock, so that it is new each time.
            let now = jiff::Timestamp::now().to_string();
            let patch = json!({"metadata": {"annotations": {"time": format!("{now} {time}")}}});
            let patched = admin
                .patch(&format!("{all}/{FENCE}"), Patch::Merge, &patch)
                .await?
                .ok()?;
            let version = patched["metadata"]["resourceVersion"].as_str().unwrap_or_default();
            fences.insert(kind.resource(), version.parse::<u64>()?);
        }
        let idle = |status: &Value| {
            let work = &status["work"];
            let kinds = work["kinds"].as_array();
            let passed = kinds.into_iter().flatten().filter(|kind| {
                let fence = kind["resource"].as_str().and_then(|name| fences.get(name));
                fence.is_some_and(|fence| kind["version"].as_u64() >= Some(*fence))
            });
            let queue = &work["queue"];
            passed.count() == fences.len() && ["ready", "busy", "delayed"].iter().all(|depth| queue[depth] == 0)
        };
        let status = agent.until(LIMIT, "the agent to be idle", idle).await;
        let status = match status {
            Ok(status) => status,
            Err(error) => bail!("{error:#}: {}", agent.status().await?["work"]),
        };
        let counts = &status["work"]["counts"];
        let done = json!([
            counts["deleted"],
            counts["referencesDropped"],
            counts["finalizersRemoved"],
            counts["ownerLookups"]
        ]);
        if done == before {
            break;
        }
        before = done;
    }
    Ok(())
}

impl TestedGraph {
    fn new(graph: Graph) -> Self {
        let seen = model::initial(&graph.plan);
        let outcomes = model::outcomes(&graph.plan, &seen, false);
        Self { graph, seen, outcomes }
    }

    /// Deletes the next object, or at the end removes all test finalizers.
    async fn next_step(&mut self, admin: &Client, step: usize, collector: Collector<'_>) -> Result<()> {
        let may_remove_finalizers = step == STEPS;
        if may_remove_finalizers {
            for number in 0..self.seen.len() {
                if self.seen[number].as_ref().is_some_and(|live| live.with_finalizer) {
                    self.graph.remove_finalizer(admin, number).await?;
                }
            }
        } else {
            let (number, policy) = self.graph.plan.deletions[step];
            if self.seen[number].is_some() {
                if self.graph.delete(admin, number, policy).await? {
                    model::delete(&mut self.seen, number, policy);
                } else {
                    // kube-controller-manager may have deleted it after the graph seemed to be settled.
                    let name = &self.graph.name;
                    ensure!(
                        matches!(collector, Collector::Original),
                        "thing {number} of {name} is deleted by an idle agent"
                    );
                    self.seen[number] = None;
                }
            }
        }
        self.outcomes = model::outcomes(&self.graph.plan, &self.seen, may_remove_finalizers);
        Ok(())
    }

    fn has_one_outcome(&self) -> bool {
        self.outcomes.as_ref().is_some_and(|outcomes| outcomes.len() == 1)
    }

    fn allows(&self, now: &World) -> bool {
        self.outcomes.as_ref().is_none_or(|outcomes| outcomes.contains(now))
    }

    fn violation(&self, now: &World) -> String {
        let plan = &self.graph.plan;
        let mut text = format!(
            "CLUSTER_GC_FIRST={} CLUSTER_GC_GRAPHS=1: {}\n",
            plan.seed, self.graph.name
        );
        let mut line = |what: &str, it: &dyn std::fmt::Debug| text.push_str(&format!("  {what}: {it:?}\n"));
        for (number, thing) in plan.things.iter().enumerate() {
            line(&format!("thing {number}"), thing);
        }
        line("deletions", &plan.deletions);
        line("before", &self.seen);
        for end in self.outcomes.iter().flatten().take(4) {
            line("allowed", end);
        }
        line("found", now);
        text
    }
}
