//! Gathers facts about a pod. Only reads, each with limits of time and size, and all with one deadline. A read that fails becomes
//! an unknown fact.

use std::{collections::HashMap, fmt::Display, sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};

use super::facts::{
    CgroupFacts, Facts, HolderFacts, MissingDriver, MountFacts, NamedFact, NamedFacts, Processes, TerminatedBy,
};
use crate::{
    explanation::cause::ProcessName,
    model::{failure::first_message, pod::PodView},
    node::{
        cri::types::RuntimePod,
        frozen::{self, Frozen},
        holders::{Holders, holders},
        mounts::{Cover, Mount, MountTable},
        plugins::{Kind, Registry, registry::DIRECTORY},
        process_pod::pod_of,
        process_state::ProcessState,
        unmounts::Call,
    },
    teardown::{
        bounded_read::{AnswerDeadline, Fact, READ_LIMIT, blocking_in, current_object, late, text},
        context::Context,
        devices, drivers,
        grace::OwnGrace,
        journal::PodJournalExt as _,
        locate,
        named_processes::NamedPids,
        runtime_state::NamedProcess,
        volumes::{PlannedTeardown, planned},
    },
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
    let deadline = AnswerDeadline::from_now();
    let (view, object_unread) = current_object(context, view).await;
    let uid = view.pod.uid.as_str();
    let entry = context.journal.pod(&view.pod.uid);
    let grace = OwnGrace::new(&view, entry.as_ref(), &context.node.clock.now());
    let is_terminating = view.deletion.is_some() && !view.mirror;
    let runtime = async {
        let read = timeout(READ_LIMIT, context.node.cri.pod_brief(uid)).await;
        let is_unreachable = matches!(&read, Ok(Err(error)) if error.is_unreachable());
        let pod = read.map_err(late(READ_LIMIT)).and_then(|pod| pod.map_err(text));
        let named = match &pod {
            Ok(pod) if is_terminating => deadline.cap(named(context, &view, pod)).await.unwrap_or_default(),
            _ => NamedFacts::default(),
        };
        (pod, is_unreachable, named)
    };
    if !is_terminating {
        let (runtime, is_runtime_unreachable, named) = runtime.await;
        return Facts {
            view,
            object_unread,
            terminated_by,
            grace,
            runtime,
            is_runtime_unreachable,
            conditions: Ok(Vec::new()),
            named,
            kill_in_seconds: None,
            cgroups: not_read(),
            mounts: not_read(),
            frozen: Vec::new(),
            holders: not_read(),
            volume_paths: not_read(),
            drivers: not_read(),
        };
    }
    let conditions = in_time(READ_LIMIT, context.node.cri.conditions());
    let (runtime, conditions, cgroups, (mounts, frozen, holders), volume_paths, drivers) = tokio::join!(
        runtime,
        deadline.cap(conditions),
        cgroups(context, &view, deadline),
        mounts(context, &view, deadline),
        deadline.cap(volume_paths(context, &view)),
        deadline.cap(missing_drivers(context, &view)),
    );
    let (runtime, is_runtime_unreachable, named) = runtime;
    let holders = match holders {
        Ok(found) => {
            name_pods(
                context,
                &view,
                outside_of(&found, runtime.as_ref().ok(), cgroups.as_ref().ok()),
            )
            .await
        }
        Err(why) => Err(why),
    };
    Facts {
        view,
        object_unread,
        terminated_by,
        grace,
        runtime,
        is_runtime_unreachable,
        conditions,
        named,
        kill_in_seconds: None,
        cgroups,
        mounts,
        frozen,
        holders,
        volume_paths,
        drivers,
    }
}

/// The running processes that the runtime names, and shims that are stopped. Runtimes need not name any.
async fn named(context: &Arc<Context>, view: &Arc<PodView>, pod: &RuntimePod) -> Fact<NamedFacts> {
    let mut some = pod.clone();
    some.containers.truncate(MAX_CONTAINERS);
    let pids = NamedPids::query(context, &view.pod.uid, &some, READ_LIMIT).await;
    let read = blocking(context, view, |context, _| {
        Ok(pids.read(&context.node.storage.proc, |_| Duration::MAX))
    });
    let found = read.await?;
    let name = |pid, command: &str| ProcessName {
        pid,
        command: command.to_owned(),
        pod: None,
    };
    let mut facts = NamedFacts::default();
    for named in found.all {
        if matches!(named.process, NamedProcess::Exited(_)) {
            facts.exited.insert(named.id.clone());
        }
        let fact = named.proven().map(|process| NamedFact {
            process: name(process.pid, &process.command),
            cgroup: process.cgroup.clone(),
        });
        if let Some(fact) = fact {
            facts.processes.entry(named.id).or_insert(fact);
        }
    }
    let stopped = found.shims.into_iter().filter(|shim| shim.is_stopped);
    facts.stopped_shims = stopped.map(|shim| (shim.id, name(shim.pid, &shim.program))).collect();
    Ok(facts)
}

async fn cgroups(context: &Arc<Context>, view: &Arc<PodView>, deadline: AnswerDeadline) -> Fact<CgroupFacts> {
    let read = blocking(context, view, |context, view| {
        let found = locate::cgroups(context, view).map_err(|failures| first_message(&failures))?;
        let cgroups = &context.node.cgroups;
        let frozen: Result<Vec<_>, _> = found.iter().map(|cgroup| cgroups.frozen(cgroup)).collect();
        let frozen = frozen.map_err(text).map(|all| paths(all.into_iter().flatten()));
        let covers = found.iter().flat_map(|cgroup| cgroups.covers(cgroup));
        let covers: Vec<_> = covers
            .map(|(at, root)| (at.display().to_string(), root.display().to_string()))
            .collect();
        let pids: Result<Vec<_>, _> = found.iter().map(|cgroup| cgroups.processes(cgroup)).collect();
        let pids: Fact<Vec<i32>> = pids.map_err(text).map(|all| all.into_iter().flatten().collect());
        let paths = paths(found.iter().map(|cgroup| cgroup.path().to_owned()));
        Ok((paths, covers, frozen, pids))
    });
    let (paths, covers, frozen, pids) = deadline.cap(read).await?;
    let processes = match pids {
        Ok(pids) => deadline.cap(processes(context, view, pids)).await,
        Err(why) => Err(why),
    };
    Ok(CgroupFacts {
        paths,
        covers,
        frozen,
        processes,
    })
}

/// Reads the processes, and those in uninterruptible sleep again.
async fn processes(context: &Arc<Context>, view: &Arc<PodView>, mut pids: Vec<i32>) -> Fact<Processes> {
    let more = pids.len().saturating_sub(MAX_PROCESSES);
    pids.truncate(MAX_PROCESSES);
    let mut all = read_processes(context, view, pids).await?;
    let sleeping: Vec<i32> = all
        .iter()
        .filter(|it| it.uninterruptible_in.is_some())
        .map(|it| it.pid)
        .collect();
    if !sleeping.is_empty() {
        sleep(SAMPLE_PAUSE).await;
        let again = read_processes(context, view, sleeping).await?;
        for process in all.iter_mut().filter(|it| it.uninterruptible_in.is_some()) {
            let again = again.iter().find(|it| it.pid == process.pid);
            process.uninterruptible_in = again.and_then(|again| again.uninterruptible_in.clone());
        }
    }
    Ok(Processes { all, more })
}

async fn read_processes(context: &Arc<Context>, view: &Arc<PodView>, pids: Vec<i32>) -> Fact<Vec<ProcessState>> {
    blocking(context, view, move |context, _| {
        let proc = &context.node.storage.proc;
        let read = pids
            .iter()
            .map(|pid| ProcessState::read(proc, *pid).map_err(|error| format!("process {pid}: {error}")));
        let read: Fact<Vec<_>> = read.collect();
        Ok(read?.into_iter().flatten().collect())
    })
    .await
}

/// The mounts below the pod's directory, and who uses them.
async fn mounts(
    context: &Arc<Context>,
    view: &Arc<PodView>,
    deadline: AnswerDeadline,
) -> (Fact<Vec<MountFacts>>, Vec<Frozen>, Fact<HashMap<u64, Holders>>) {
    let read = blocking(context, view, |context, view| {
        let dir = locate::pod_dir(context, view).map_err(|failures| first_message(&failures))?;
        let table = context.node.storage.all_mounts.read().map_err(text)?;
        let found = table.mounts_at_or_below(&[dir.path()]);
        let own = table.mount_containing(dir.path()).cloned();
        Ok((table, found, own))
    });
    let (table, found, own) = match deadline.cap(read).await {
        Ok(read) => read,
        Err(why) => return (Err(why), Vec::new(), Err("without the mount table".to_owned())),
    };
    let probed: Vec<Mount> = found.iter().cloned().chain(own).collect();
    let frozen = blocking(context, view, move |context, _| {
        Ok(frozen::find(
            &probed,
            &context.node.storage.effects.unmounting().in_flight,
        ))
    });
    let frozen = deadline.cap(frozen).await.unwrap_or_default();
    let facts = found.iter().map(|mount| MountFacts {
        id: mount.id,
        path: mount.path.display().to_string(),
        fs_type: mount.fs_type.to_string_lossy().into_owned(),
        source: mount.source.to_string_lossy().into_owned(),
        has_server: has_server(mount),
        cover: table.cover_of(&mount.path).map(|cover| Cover::new(cover, &table)),
    });
    let facts = Ok(facts.collect());
    let holders = deadline.cap(search_holders(context, view, table, found)).await;
    (facts, frozen, holders)
}

async fn search_holders(
    context: &Arc<Context>,
    view: &Arc<PodView>,
    table: Arc<MountTable>,
    mut busy: Vec<Mount>,
) -> Fact<HashMap<u64, Holders>> {
    busy.truncate(MAX_MOUNTS);
    let search = blocking_in(HOLDERS_LIMIT, context, view, move |context, _| {
        let storage = &context.node.storage;
        Ok(holders(
            &storage.proc,
            &table,
            &busy,
            &storage.effects.unmounting().in_flight,
            Call::DiagnoseHolders,
        ))
    });
    search.await
}

/// Users outside of the pod. The pod's own processes exit with its containers.
fn outside_of(
    found: &HashMap<u64, Holders>,
    runtime: Option<&RuntimePod>,
    cgroups: Option<&CgroupFacts>,
) -> HashMap<u64, HolderFacts> {
    let is_own_container = |id: &str| {
        runtime.is_some_and(|pod| {
            let mut ids = pod
                .containers
                .iter()
                .map(|it| &it.id)
                .chain(pod.sandboxes.iter().map(|it| &it.id));
            ids.any(|own| own == id)
        })
    };
    let own = cgroups.and_then(|cgroups| cgroups.processes.as_ref().ok());
    let is_own_process = |pid: i32| own.is_some_and(|own| own.all.iter().any(|it| it.pid == pid));
    let are_all_own_known = runtime.is_some() || own.is_some_and(|own| own.more == 0);
    let facts = |holders: &Holders| HolderFacts {
        may_be_own: !are_all_own_known,
        outside: holders
            .processes
            .iter()
            .filter(|it| !it.container.as_deref().is_some_and(is_own_container) && !is_own_process(it.pid))
            .map(|it| ProcessName {
                pid: it.pid,
                command: it.command.clone(),
                pod: None,
            })
            .collect(),
        more: holders.more,
        is_incomplete: holders.is_incomplete,
    };
    found.iter().map(|(id, holders)| (*id, facts(holders))).collect()
}

/// Adds the pods of these processes.
async fn name_pods(
    context: &Arc<Context>,
    view: &Arc<PodView>,
    mut found: HashMap<u64, HolderFacts>,
) -> Fact<HashMap<u64, HolderFacts>> {
    blocking(context, view, move |context, _| {
        let node = &context.node;
        for process in found.values_mut().flat_map(|holders| &mut holders.outside) {
            process.pod = pod_of(&node.storage.proc, &node.pod_logs_dir, process.pid);
        }
        Ok(found)
    })
    .await
}

async fn volume_paths(context: &Arc<Context>, view: &Arc<PodView>) -> Fact<Vec<String>> {
    blocking(context, view, |context, view| {
        let dir = locate::pod_dir(context, view).map_err(|failures| first_message(&failures))?;
        Ok(paths(dir.leftovers_on_disk().map_err(text)?))
    })
    .await
}

/// Drivers of the pod's volumes and claims that cannot be called.
async fn missing_drivers(context: &Arc<Context>, view: &Arc<PodView>) -> Fact<Vec<MissingDriver>> {
    let volumes = blocking(context, view, |context, view| {
        let dir = locate::pod_dir(context, view).map_err(|failures| first_message(&failures))?;
        let storage = &context.node.storage;
        let table = storage.mounts.read().map_err(text)?;
        planned(&dir, storage, &table).map_err(text)
    });
    let mut needed = Vec::new();
    for volume in volumes.await? {
        if let PlannedTeardown::Csi {
            driver: Some(driver),
            mounted,
            ..
        } = volume.teardown
        {
            needed.push((Kind::Csi, driver, format!("volume {}", volume.name), mounted));
        }
    }
    let claims = timeout(READ_LIMIT, devices::prepared(context, view))
        .await
        .map_err(late(READ_LIMIT))?;
    for claim in claims.map_err(|failures| first_message(&failures))? {
        let name = format!("claim {}/{}", claim.claim.namespace, claim.claim.name);
        needed.extend(
            claim
                .drivers
                .into_iter()
                .map(|driver| (Kind::Dra, driver, name.clone(), Vec::new())),
        );
    }
    if needed.is_empty() {
        return Ok(Vec::new());
    }
    let directory = context.node.storage.root.path().join(DIRECTORY);
    let registry = in_time(READ_LIMIT, Registry::read(&directory, &context.node.effects)).await?;
    let is_certain = registry.faults.is_empty() && registry.unresponsive.iter().all(|it| it.error.is_unreachable());
    let mut missing = Vec::new();
    for (kind, driver, needed_by, mounted) in needed {
        let why = match kind {
            Kind::Csi => registry.csi(&driver).await.err(),
            Kind::Dra => registry.dra(&driver).await.err(),
            Kind::Other => None,
        };
        missing.extend(why.map(|unavailable| MissingDriver {
            kind: kind.to_string(),
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
    listed
        .map_err(late(PODS_LIMIT))
        .and_then(|listed| listed.map_err(text))?;
    for it in missing {
        let own = found.iter().filter(|(driver, _)| *driver == it.driver);
        it.pods = own.map(|(_, pod)| pod.clone()).collect();
    }
    Ok(())
}

/// Whether the data of the mount is behind a server or a process of the node.
fn has_server(mount: &Mount) -> bool {
    let fs_type = mount.fs_type.to_string_lossy();
    let exact = [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "ceph",
        "9p",
        "glusterfs",
        "lustre",
        "afs",
        "beegfs",
    ];
    exact.contains(&&*fs_type) || fs_type.starts_with("fuse.")
}

async fn blocking<T: Send + 'static>(
    context: &Arc<Context>,
    view: &Arc<PodView>,
    read: impl FnOnce(&Context, &PodView) -> Fact<T> + Send + 'static,
) -> Fact<T> {
    blocking_in(READ_LIMIT, context, view, read).await
}

async fn in_time<T, E: Display>(limit: Duration, read: impl Future<Output = Result<T, E>>) -> Fact<T> {
    timeout(limit, read).await.map_err(late(limit))?.map_err(text)
}

fn paths(paths: impl IntoIterator<Item = std::path::PathBuf>) -> Vec<String> {
    paths.into_iter().map(|path| path.display().to_string()).collect()
}

fn not_read<T>() -> Fact<T> {
    Err("it is not read for a pod that is not being deleted".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::teardown::diagnosis::facts::Processes;

    #[test]
    fn process_is_outside_of_the_pod_only_if_the_pods_own_are_known() {
        let holders = Holders {
            processes: vec![crate::node::holders::MountHolder {
                pid: 41,
                command: "app".to_owned(),
                container: Some("main-0".to_owned()),
                usage: crate::node::holders::Usage::WorkingDirectory,
                namespace: crate::node::holders::Namespace::Other,
            }],
            ..Holders::default()
        };
        let found = HashMap::from([(5, holders)]);
        let cgroups = |more| CgroupFacts {
            paths: Vec::new(),
            covers: Vec::new(),
            frozen: Ok(Vec::new()),
            processes: Ok(Processes { all: Vec::new(), more }),
        };
        let runtime = RuntimePod::default();
        for (runtime, cgroups, may_be_own) in [
            (Some(&runtime), None, false),
            (Some(&runtime), Some(&cgroups(1)), false),
            (None, Some(&cgroups(0)), false),
            (None, Some(&cgroups(1)), true),
            (None, None, true),
        ] {
            assert_eq!(outside_of(&found, runtime, cgroups)[&5].may_be_own, may_be_own);
        }
    }
}
