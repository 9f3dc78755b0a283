//! Direct deletion, kube-controller-manager and the agent delete the same ConfigMaps, in turn, on the same control plane. The agent
//! alone also gets many objects of the in-memory API server.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use http::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use super::{
    Table,
    gc_cluster::{self as cluster, Family},
    http2::{Http2, JSON, PROTOBUF},
    machine, program,
    usage::{PEAK, RESIDENT, Usage},
};
use crate::{
    api::{ADMIN, Access, ApiServer as _},
    apiserver::process::ApiServerProcess,
    control_plane::{ControlPlane, ControllerManager, Settings},
    stage::{AgentCommand, AgentProcess},
};

/// The rights of kube-controller-manager's garbage collector.
const ROLE: &str = "system:controller:generic-garbage-collector";
/// kube-controller-manager has 20 by default, which are slower.
const WORKERS: u16 = 64;
/// Allows for a million objects on a busy machine.
const SYNC: Duration = Duration::from_secs(600);
/// Each status request is a process on the measured processors.
const POLL: Duration = Duration::from_millis(50);
/// Objects per request to the in-memory API server.
const BULK: u32 = 1000;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many dependents the one owner has.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "5000,100000")]
    objects: Vec<u32>,
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,
    /// How many objects the agent gets on the API server in memory; 0 for none of that.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    scale: u32,
    /// The agent [default: pod-teardown beside this program].
    #[arg(long, value_name = "PATH")]
    agent: Option<PathBuf>,
    /// The API server in memory [default: testbed-apiserver beside this program].
    #[arg(long, value_name = "PATH")]
    apiserver: Option<PathBuf>,
}

/// A collector that is synced.
enum Collector {
    Manager(ControllerManager),
    // Dropped in this order: the process, then its directory.
    Agent(AgentProcess, TempDir),
}

impl Args {
    pub async fn run(&self) -> Result<bool> {
        let agent = program(self.agent.as_ref(), "pod-teardown")?;
        println!("{}", machine()?);
        let mut tables = Vec::new();
        let plane = ControlPlane::start().await?;
        for &objects in &self.objects {
            let table = self.measure(&plane, &agent, objects).await?;
            tables.push(table.text(&format!("{objects} ConfigMaps of one owner; {} rounds", self.rounds)));
        }
        drop(plane);
        if self.scale > 0 {
            let apiserver = program(self.apiserver.as_ref(), "testbed-apiserver")?;
            let table = scale(&agent, &apiserver, self.scale).await?;
            tables.push(table.text(&format!("The agent and {} objects in memory", self.scale)));
        }
        println!("\n{METHOD}\n\n{}\n{}", tables.join("\n"), machine()?);
        Ok(true)
    }

    async fn measure(&self, plane: &ControlPlane, agent: &Path, objects: u32) -> Result<Table> {
        let namespace = format!("bench-{objects}");
        let object = json!({ "metadata": { "name": namespace } });
        plane.admin()?.create("/api/v1/namespaces", &object).await?.ok()?;
        let by_direct = plane.account(&format!("direct-{objects}"), ROLE).await?;
        let by_agent = plane.account(&format!("agent-{objects}"), ROLE).await?;
        let admin = Http2::new(&plane.access(ADMIN), 4)?;
        let mut table = Table::default();
        for round in 0..self.rounds {
            let mut rates = [0.0; 3];
            // Each is first in turn.
            for contender in (0..3).cycle().skip(round).take(3) {
                let name = ["direct", "manager", "agent"][contender];
                let family =
                    Family::create(&admin, &namespace, &format!("{name}-{round}"), objects, contender > 0).await?;
                let seconds = match contender {
                    0 => family.delete_all(&Http2::new(&by_direct, 2)?, &admin).await?,
                    _ => {
                        let lists = cluster::list_everything(&by_direct).await?;
                        let begin = Instant::now();
                        let collector = match contender {
                            1 => Collector::manager(plane).await?,
                            _ => Collector::agent(agent, &by_agent).await?,
                        };
                        let start = begin.elapsed().as_secs_f64();
                        table.add(format!("{name}: start until synced"), "s", [start]);
                        table.add(format!("{name}: start / plain lists"), "", [start / lists]);
                        collector.cascade(name, &family, &admin, &mut table).await?
                    }
                };
                // Deleted objects would slow the next one down.
                plane.forget_history().await.context("compact the store")?;
                rates[contender] = f64::from(objects) / seconds;
                table.add(format!("{name}: deletions"), "/s", [rates[contender]]);
                println!("{objects} ConfigMaps, round {round}: {name}: {:.0}/s", rates[contender]);
            }
            table.add("manager / direct", "", [rates[1] / rates[0]]);
            table.add("agent / direct", "", [rates[2] / rates[0]]);
        }
        Ok(table)
    }
}

const METHOD: &str = "\
Direct: a client that deletes by name over HTTP/2, with 64 requests in flight over two connections. Manager:
kube-controller-manager with its collector alone, 64 workers and no client limits. Agent: its collector alone.
Each under a service account of kube-system, from the first deletion until a list shows none left. CPU: user and system
time of the collector's process, from the owner's deletion until it is quiet. Resident: VmRSS once settled, and at its
peak from the start until then, and from then on. Plain lists: metadata in protobuf, 500 a page, kinds in parallel.";

impl Collector {
    async fn manager(plane: &ControlPlane) -> Result<Self> {
        let settings = Settings::only_the_collector().without_limits();
        let settings = settings.with_collecting_workers(WORKERS);
        Ok(Self::Manager(plane.start_controllers(&settings).await?))
    }

    async fn agent(binary: &Path, access: &Access) -> Result<Self> {
        let directory = tempfile::tempdir().context("make a directory for the agent")?;
        let mut process = AgentCommand::collector(binary, directory.path(), access, "always")?.spawn()?;
        let begin = Instant::now();
        loop {
            // Before it listens, the answer is an error.
            let answer = process.ask(&["gc", "status", "-ojson"]).await;
            let status = answer.and_then(|text| Ok(serde_json::from_str::<Value>(&text)?));
            if status.is_ok_and(|status| status["synced"] == true) {
                return Ok(Self::Agent(process, directory));
            }
            let ended = process.has_ended()?;
            if ended.is_some() || begin.elapsed() > SYNC {
                bail!(
                    "the agent has not synced, exit code {ended:?}; its log ends with:\n{}",
                    process.log_tail()
                );
            }
            sleep(POLL).await;
        }
    }

    fn usage(&self) -> Result<Usage> {
        Ok(Usage(match self {
            Self::Manager(manager) => manager.pid(),
            Self::Agent(process, _) => process.pid().context("the agent has ended")?,
        }))
    }

    /// Seconds until all dependents are deleted. Stops the collector.
    async fn cascade(self, name: &str, family: &Family, admin: &Http2, table: &mut Table) -> Result<f64> {
        let usage = self.usage()?;
        let work = async {
            usage.wait_until_idle().await?;
            table.add(format!("{name}: resident, settled"), "MiB", [usage.mib(RESIDENT)?]);
            table.add(
                format!("{name}: resident, peak at the start"),
                "MiB",
                [usage.mib(PEAK)?],
            );
            usage.reset_peak()?;
            let (before, begin) = (usage.cpu()?, Instant::now());
            let options = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background" });
            admin
                .send(Method::DELETE, &family.owner_path(), PROTOBUF, options.to_string())
                .await?;
            let seconds = family.wait_until_deleted(admin, begin).await?;
            usage.wait_until_idle().await?;
            table.add(format!("{name}: CPU"), "s", [(usage.cpu()? - before).as_secs_f64()]);
            table.add(format!("{name}: resident, peak"), "MiB", [usage.mib(PEAK)?]);
            Ok(seconds)
        };
        match self {
            Self::Manager(manager) => manager.during(work).await,
            Self::Agent(process, _directory) => {
                let seconds = process.during(work).await?;
                process.stop().await?;
                Ok(seconds)
            }
        }
    }
}

/// The agent with no objects and with many, half of them dependents of one owner, on an in-memory API server in its own process.
async fn scale(agent: &Path, apiserver: &Path, objects: u32) -> Result<Table> {
    let mut table = Table::default();
    let mut without = 0.0;
    for count in [0, objects] {
        let api = ApiServerProcess::start(apiserver).await?;
        let client = Http2::new(&api.access(ADMIN), 1)?;
        for first in (0..count).step_by(BULK as usize) {
            let some: Vec<_> = (first..count.min(first + BULK))
                .map(|index| cluster::object(index, count))
                .collect();
            client
                .send(Method::POST, "/testbed/objects", JSON, json!(some).to_string())
                .await?;
        }
        let begin = Instant::now();
        let collector = Collector::agent(agent, &api.access(ADMIN)).await?;
        let (start, usage) = (begin.elapsed().as_secs_f64(), collector.usage()?);
        usage.wait_until_idle().await?;
        let resident = usage.mib(RESIDENT)?;
        if count == 0 {
            table.add("resident without objects", "MiB", [resident]);
            without = resident;
            continue;
        }
        let bytes = (resident - without) * 1024.0 * 1024.0 / f64::from(count);
        table.add("start until synced", "s", [start]);
        table.add("resident, settled", "MiB", [resident]);
        table.add("resident, peak", "MiB", [usage.mib(PEAK)?]);
        table.add_with_goal("resident for each object", "B", Some(200.0), [bytes]);
    }
    Ok(table)
}
