//! Gathers facts about a pod. Only reads, each with limits of time and size, and all with one deadline. A read that fails becomes
//! an unknown fact.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::{sleep, timeout};

use super::facts::{CgroupFacts, Facts, MissingDriver, NamedFacts, Processes, TerminatedBy};
use crate::{
    model::pod::PodView,
    node::{
        cri::types::RuntimePod,
        holders::{Holders, MountHolder, holders},
        mounts::{Cover, Mount},
        plugins::{Kind, Registry, registry::DIRECTORY},
        process_pod::pod_of,
        process_state::ProcessState,
        unmounts::Call,
    },
    teardown::{
        bounded_read::{Fact, READ_LIMIT, Reads, blocking_in, late, text},
        context::Context,
        drivers,
        grace::OwnGrace,
        locate,
        named_processes::NamedPids,
        runtime_state::NamedProcess,
        steps::devices,
        volumes::planned,
    },
    why::Why,
};

/// Limit of the search for holders, which limits itself.
const HOLDERS_LIMIT: Duration = Duration::from_millis(3500);
/// Limit of the list of pods, after the drivers were read.
const PODS_LIMIT: Duration = Duration::from_secs(1);
/// Number of processes that are read.
const MAX_PROCESSES: usize = 512;
/// Number of mounts whose holders are searched.
const MAX_MOUNTS: usize = 64;
/// Number of containers whose processes are queried.
const MAX_CONTAINERS: usize = 64;
/// A process is in uninterruptible sleep if it is twice, with this pause between: a disk makes every process wait for moments.
const SAMPLE_PAUSE: Duration = Duration::from_millis(200);

/// Gathers the facts about this pod. The context refuses effects, see [`Context::read_only`].
pub(crate) async fn gather(context: &Arc<Context>, view: Arc<PodView>, terminated_by: TerminatedBy) -> Facts {
    let (reads, object_unread) = Reads::of_current(context, view).await;
    let view = Arc::clone(&reads.view);
    let entry = context.journal.pod(&view.pod.uid);
    let mut facts = Facts {
        object_unread,
        terminated_by,
        grace: OwnGrace::new(&view, entry.as_ref(), &context.node.clock.now()),
        runtime: not_read(),
        is_runtime_unreachable: false,
        conditions: not_read(),
        named: NamedFacts::default(),
        kill_in_seconds: None,
        cgroups: not_read(),
        mounts: not_read(),
        holders: not_read(),
        pods: HashMap::new(),
        volume_paths: not_read(),
        drivers: not_read(),
        view,
    };
    if facts.view.deletion.is_none() || facts.view.mirror {
        (facts.runtime, facts.is_runtime_unreachable) = runtime(&reads).await;
        return facts;
    }
    let runtime = async {
        let (pod, is_unreachable) = runtime(&reads).await;
        let named = match &pod {
            Ok(pod) => reads.cap(named(&reads, pod)).await.unwrap_or_default(),
            Err(_) => NamedFacts::default(),
        };
        (pod, is_unreachable, named)
    };
    (
        (facts.runtime, facts.is_runtime_unreachable, facts.named),
        facts.conditions,
        facts.cgroups,
        (facts.mounts, facts.holders),
        facts.volume_paths,
        facts.drivers,
    ) = tokio::join!(
        runtime,
        reads.in_time(reads.context.node.cri.conditions()),
        cgroups(&reads),
        mounts(&reads),
        volume_paths(&reads),
        reads.cap(missing_drivers(&reads)),
    );
    drop_own_holders(&mut facts);
    facts.pods = pods_of_holders(&reads, &facts).await.unwrap_or_default();
    facts
}

/// The pod in the runtime, and whether the runtime cannot be reached.
async fn runtime(reads: &Reads) -> (Fact<RuntimePod>, bool) {
    let pod = reads.context.node.cri.pod_brief(reads.view.pod.uid.as_str());
    let read = timeout(READ_LIMIT, pod).await;
    let is_unreachable = matches!(&read, Ok(Err(error)) if error.is_unreachable());
    let pod = read.map_err(late(READ_LIMIT)).and_then(|pod| pod.map_err(text));
    (pod, is_unreachable)
}

/// The running processes that the runtime names, and shims that are stopped. Runtimes need not name any.
async fn named(reads: &Reads, pod: &RuntimePod) -> Fact<NamedFacts> {
    let mut some = pod.clone();
    some.containers.truncate(MAX_CONTAINERS);
    let pids = NamedPids::query(&reads.context, &reads.view.pod.uid, &some, READ_LIMIT).await;
    let read = reads.on_node(|context, _| Ok(pids.read(&context.node.storage.proc, |_| Duration::MAX)));
    let found = read.await?;
    let mut facts = NamedFacts::default();
    for named in found.all {
        if matches!(named.process, NamedProcess::Exited(_)) {
            facts.exited.insert(named.id.clone());
        }
        if let Some(process) = named.proven {
            let process = (process.pid, process.to_string());
            facts.processes.entry(named.id).or_insert(process);
        }
    }
    facts.stopped_shims = found.shims;
    facts.stopped_shims.retain(|shim| shim.is_stopped);
    Ok(facts)
}

async fn cgroups(reads: &Reads) -> Fact<CgroupFacts> {
    let read = reads.on_node(|context, view| {
        let found = locate::cgroups(context, view)?;
        let cgroups = &context.node.cgroups;
        let frozen: Result<Vec<_>, _> = found.iter().map(|cgroup| cgroups.frozen(cgroup)).collect();
        let frozen = frozen.map_err(text).map(|all| paths(all.into_iter().flatten()));
        let pids: Result<Vec<_>, _> = found.iter().map(|cgroup| cgroups.processes(cgroup)).collect();
        let pids: Fact<Vec<i32>> = pids.map_err(text).map(|all| all.into_iter().flatten().collect());
        let paths = paths(found.iter().map(|cgroup| cgroup.path().to_owned()));
        Ok((paths, frozen, pids))
    });
    let (paths, frozen, pids) = read.await?;
    let processes = match pids {
        Ok(pids) => processes(reads, pids).await,
        Err(why) => Err(why),
    };
    Ok(CgroupFacts {
        paths,
        frozen,
        processes,
    })
}

/// Reads the processes, and those in uninterruptible sleep again.
async fn processes(reads: &Reads, mut pids: Vec<i32>) -> Fact<Processes> {
    let more = pids.len().saturating_sub(MAX_PROCESSES);
    pids.truncate(MAX_PROCESSES);
    let mut all = read_processes(reads, pids).await?;
    let sleeping = all.iter().filter(|it| it.uninterruptible_in.is_some());
    let sleeping: Vec<i32> = sleeping.map(|it| it.pid).collect();
    if !sleeping.is_empty() {
        sleep(SAMPLE_PAUSE).await;
        let again = read_processes(reads, sleeping).await?;
        for process in all.iter_mut().filter(|it| it.uninterruptible_in.is_some()) {
            let again = again.iter().find(|it| it.pid == process.pid);
            process.uninterruptible_in = again.and_then(|again| again.uninterruptible_in.clone());
        }
    }
    Ok(Processes { all, more })
}

async fn read_processes(reads: &Reads, pids: Vec<i32>) -> Fact<Vec<ProcessState>> {
    let read = reads.on_node(move |context, _| {
        let mut all = Vec::new();
        for pid in pids {
            let read = ProcessState::read(&context.node.storage.proc, pid);
            all.extend(read.map_err(|error| format!("process {pid}: {error}"))?);
        }
        Ok(all)
    });
    read.await
}

/// The mounts below the pod's directory, and who uses them.
async fn mounts(reads: &Reads) -> (Fact<Vec<(Mount, Option<Cover>)>>, Fact<HashMap<u64, Holders>>) {
    let read = reads.on_node(|context, view| {
        let dir = locate::pod_dir(context, view)?;
        let table = context.node.storage.all_mounts.read().map_err(text)?;
        let found = table.mounts_at_or_below(&[dir.path()]);
        Ok((table, found))
    });
    let (table, mut busy) = match read.await {
        Ok(read) => read,
        Err(why) => return (Err(why), Err(Why::new("without the mount table"))),
    };
    let facts = busy.iter().map(|mount| {
        let cover = table.cover_of(&mount.path);
        (mount.clone(), cover.map(|cover| Cover::new(cover, &table)))
    });
    let facts = Ok(facts.collect());
    busy.truncate(MAX_MOUNTS);
    let search = blocking_in(HOLDERS_LIMIT, &reads.context, &reads.view, move |context, _| {
        let storage = &context.node.storage;
        let in_flight = &storage.effects.unmounting.in_flight;
        Ok(holders(&storage.proc, &table, &busy, in_flight, Call::DiagnoseHolders))
    });
    (facts, reads.cap(search).await)
}

/// Leaves the users outside of the pod. The pod's own processes exit with its containers.
fn drop_own_holders(facts: &mut Facts) {
    let runtime = facts.runtime.as_ref().ok();
    let containers = runtime.iter().flat_map(|pod| pod.containers.iter().map(|it| &it.id));
    let sandboxes = runtime.iter().flat_map(|pod| pod.sandboxes.iter().map(|it| &it.id));
    let ids: HashSet<&String> = containers.chain(sandboxes).collect();
    let own = facts.cgroups.as_ref().ok().and_then(|it| it.processes.as_ref().ok());
    let pids: HashSet<i32> = own.into_iter().flat_map(|own| &own.all).map(|it| it.pid).collect();
    for holders in facts.holders.iter_mut().flat_map(HashMap::values_mut) {
        let is_own =
            |it: &MountHolder| pids.contains(&it.pid) || it.container.as_ref().is_some_and(|id| ids.contains(id));
        holders.processes.retain(|it| !is_own(it));
    }
}

async fn pods_of_holders(reads: &Reads, facts: &Facts) -> Fact<HashMap<i32, String>> {
    let holders = facts.holders.iter().flat_map(HashMap::values);
    let pids: Vec<i32> = holders.flat_map(|it| &it.processes).map(|it| it.pid).collect();
    let read = reads.on_node(move |context, _| {
        let (proc, logs) = (&context.node.storage.proc, &context.node.pod_logs_dir);
        let pod = |pid: i32| Some((pid, pod_of(proc, logs, pid)?));
        Ok(pids.into_iter().filter_map(pod).collect())
    });
    read.await
}

async fn volume_paths(reads: &Reads) -> Fact<Vec<String>> {
    let read = reads.on_node(|context, view| {
        let dir = locate::pod_dir(context, view)?;
        Ok(paths(dir.leftovers_on_disk().map_err(text)?))
    });
    read.await
}

/// Drivers of the pod's volumes and claims that cannot be called.
async fn missing_drivers(reads: &Reads) -> Fact<Vec<MissingDriver>> {
    let volumes = reads.on_node(|context, view| {
        let dir = locate::pod_dir(context, view)?;
        let storage = &context.node.storage;
        let table = storage.mounts.read().map_err(text)?;
        planned(&dir, storage, &table).map_err(text)
    });
    let mut needed = Vec::new();
    for volume in volumes.await? {
        if let Some(driver) = volume.calls.driver {
            let needed_by = format!("volume {}", volume.name);
            needed.push((Kind::Csi, driver, needed_by, volume.calls.mounted));
        }
    }
    let (context, view) = (&reads.context, &reads.view);
    let claims = async { Ok::<_, Why>(devices::prepared(context, view).await?) };
    for claim in reads.in_time(claims).await? {
        let name = format!("claim {}/{}", claim.claim.namespace, claim.claim.name);
        let drivers = claim.drivers.into_iter();
        needed.extend(drivers.map(|driver| (Kind::Dra, driver, name.clone(), Vec::new())));
    }
    if needed.is_empty() {
        return Ok(Vec::new());
    }
    let directory = context.node.storage.root.path().join(DIRECTORY);
    let registry = reads.in_time(Registry::read(&directory, &context.node.effects)).await?;
    let is_certain = registry.is_complete();
    let mut missing = Vec::new();
    for (kind, driver, needed_by, mounted) in needed {
        let why = match kind {
            Kind::Csi => registry.csi(&driver).await.err(),
            Kind::Dra => registry.dra(&driver).await.err(),
        };
        missing.extend(why.map(|unavailable| MissingDriver {
            kind,
            driver,
            needed_by,
            mounted,
            why: unavailable.why,
            is_certain,
            pods: Vec::new(),
        }));
    }
    if !missing.is_empty() {
        add_driver_pods(context, &mut missing).await?;
    }
    Ok(missing)
}

/// Adds the pods of this node that seem to be these drivers.
async fn add_driver_pods(context: &Context, missing: &mut [MissingDriver]) -> Fact<()> {
    let root = &context.node.storage.root;
    let mut found = Vec::new();
    let drivers: Vec<String> = missing.iter().map(|it| it.driver.clone()).collect();
    let mut each = |pod: PodView| {
        for driver in drivers.iter().filter(|driver| drivers::seems_to_be(root, &pod, driver)) {
            let state = match (pod.deletion.is_some(), pod.terminal_phase, pod.shows_running) {
                (true, _, _) => " (is being deleted)",
                (false, true, _) => " (has terminated)",
                (false, false, true) => " (shows a running container)",
                (false, false, false) => " (does not run)",
            };
            found.push((driver.clone(), format!("{}{state}", pod.pod)));
        }
    };
    let listed = timeout(PODS_LIMIT, context.api.each_pod(&mut each)).await;
    listed.map_err(late(PODS_LIMIT))?.map_err(text)?;
    for it in missing {
        let own = found.iter().filter(|(driver, _)| *driver == it.driver);
        it.pods = own.map(|(_, pod)| pod.clone()).collect();
    }
    Ok(())
}

fn paths(paths: impl IntoIterator<Item = std::path::PathBuf>) -> Vec<String> {
    paths.into_iter().map(|path| path.display().to_string()).collect()
}

fn not_read<T>() -> Fact<T> {
    Err(Why::new("it is not read for a pod that is not being deleted"))
}
