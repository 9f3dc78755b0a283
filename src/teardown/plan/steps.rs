//! Decides the steps of a plan. Pure.

use jiff::Timestamp;

use super::{
    facts::{CgroupFacts, PlanFacts},
    model::{Plan, PlannedAction, PlannedStep, PlannedWait},
    status::planned_statuses,
};
use crate::{
    model::{
        pod::{ContainerView, Hook, HookPort, PodView},
        step::Step,
    },
    node::cri::types::RuntimePod,
    teardown::{
        containers::{hook_of, stop_timeout},
        grace::{self, RequestedGrace},
        journal::PodEntry,
        stop_order::StopPosition,
        volumes::{PlannedTeardown, PlannedVolume},
    },
};

/// What a teardown would do. What could not be read is named, and missing in the steps.
pub fn plan(facts: &PlanFacts, now: Timestamp) -> Plan {
    let view = &facts.view;
    let grace = grace::effective(
        facts.entry.as_ref().map(|entry| entry.grace),
        RequestedGrace::for_pod(view, None),
    );
    let left = grace.saturating_sub(facts.used);
    let mut unknown = Vec::new();
    if let Some(why) = &facts.object_unread {
        unknown.push(format!("its object in the API server: {why}"));
    }
    let runtime = known("the pod in the container runtime", &facts.runtime, &mut unknown);
    let claims = known("its prepared claims", &facts.claims, &mut unknown);
    let dependents = known("the pods that need it", &facts.dependents, &mut unknown);
    // A termination that has begun is not interrupted, and without a running container it serves no other pod.
    let has_begun = facts.entry.as_ref().is_some_and(PodEntry::has_begun);
    let may_wait = !has_begun && runtime.is_none_or(RuntimePod::may_run);
    let waits_for = dependents
        .and_then(Option::as_ref)
        .filter(|_| may_wait && !view.mirror)
        .map(|it| PlannedWait {
            needed_as: it.role.to_owned(),
            pods: it.pods.clone(),
            at_most_seconds: facts.driver_hold.as_secs(),
        });
    let volumes = known("its volumes", &facts.volumes, &mut unknown);
    let cgroups = known("its cgroups", &facts.cgroups, &mut unknown);
    let directory = known("its directory", &facts.directory, &mut unknown);
    let logs = known("its log directory", &facts.logs, &mut unknown);

    let status = |runtime: &RuntimePod| PlannedAction::ReportStatus {
        outcomes: planned_statuses(facts, runtime, now),
    };
    let status: Vec<PlannedAction> = runtime.map(status).into_iter().collect();
    // A terminal status starts the controller's clock for a forced detach.
    let early_status = if facts.may_hold_attached {
        Vec::new()
    } else {
        status.clone()
    };
    let late_status = if facts.may_hold_attached { status } else { Vec::new() };
    let finalizers = view
        .object
        .as_ref()
        .and_then(|object| object.pod.metadata.finalizers.clone());
    let claims = claims.into_iter().flatten().map(|claim| match &claim.used_by {
        Some(used_by) => PlannedAction::KeepClaim {
            claim: claim.claim.clone(),
            used_by: used_by.clone(),
        },
        None => PlannedAction::UnprepareClaim {
            claim: claim.claim.clone(),
            drivers: claim.drivers.clone(),
        },
    });
    let remove_cgroup = |CgroupFacts { cgroup, path }: &CgroupFacts| PlannedAction::RemoveCgroup {
        cgroup: cgroup.clone(),
        path: path.clone(),
    };
    let delete = PlannedAction::DeleteObject {
        uid: view.pod.uid.to_string(),
        kept_by: finalizers.unwrap_or_default(),
    };
    let directories = logs.cloned().flatten().into_iter().chain(directory.cloned().flatten());
    let mut cleanup: Vec<PlannedAction> = runtime.map(cleanup).unwrap_or_default();
    cleanup.extend(directories.map(|path| PlannedAction::RemoveDirectory { path }));

    let steps = [
        (Step::Hook, runtime.map(|pod| hooks(facts, pod)).unwrap_or_default()),
        (
            Step::Term,
            runtime
                .map(|pod| stops(view, pod, stop_timeout(left).as_secs()))
                .unwrap_or_default(),
        ),
        (
            Step::Sandbox,
            runtime
                .iter()
                .flat_map(|pod| &pod.sandboxes)
                .map(|it| PlannedAction::StopSandbox { id: it.id.clone() })
                .collect(),
        ),
        (Step::Devices, claims.collect()),
        (Step::Status, early_status),
        (
            Step::Volumes,
            volumes.into_iter().flatten().flat_map(teardown_of).collect(),
        ),
        (Step::Cgroup, cgroups.into_iter().flatten().map(remove_cgroup).collect()),
        (Step::Status, late_status),
        (Step::Delete, vec![delete]),
        (Step::Cleanup, cleanup),
    ];
    let steps = steps
        .into_iter()
        .filter(|(_, actions)| !actions.is_empty() && !view.mirror);
    Plan {
        namespace: view.pod.namespace.to_string(),
        name: view.pod.name.to_string(),
        uid: view.pod.uid.to_string(),
        is_deleted: view.deletion.is_some(),
        is_mirror: view.mirror,
        blocked: facts.blocked.clone(),
        waits_for,
        grace_seconds: grace.as_secs(),
        grace_left_seconds: left.as_secs(),
        steps: steps.map(|(step, actions)| PlannedStep { step, actions }).collect(),
        unknown,
    }
}

fn known<'a, T>(what: &str, fact: &'a Result<T, String>, unknown: &mut Vec<String>) -> Option<&'a T> {
    match fact {
        Ok(fact) => Some(fact),
        Err(why) => {
            unknown.push(format!("{what}: {why}"));
            None
        }
    }
}

/// Hooks whose end is not recorded.
fn hooks(facts: &PlanFacts, pod: &RuntimePod) -> Vec<PlannedAction> {
    let has_run = |id: &str| {
        let hook = facts.entry.as_ref().and_then(|entry| entry.hooks.get(id));
        hook.is_some_and(|hook| hook.ended)
    };
    let running = pod.possibly_running().filter(|container| !has_run(&container.id));
    let hooks = running.filter_map(|container| {
        let (spec, hook) = hook_of(container, facts.view.container(&container.name))?;
        Some(PlannedAction::RunHook {
            container: container.name.clone(),
            id: container.id.clone(),
            handler: hook.kind().to_owned(),
            target: target_of(&facts.view, spec, hook),
        })
    });
    hooks.collect()
}

fn target_of(view: &PodView, spec: &ContainerView, hook: &Hook) -> String {
    match hook {
        Hook::Exec(command) => command.join(" "),
        Hook::HttpGet(get) => {
            let scheme = if get.https { "https" } else { "http" };
            let own = || {
                if view.host_network {
                    view.host_ip.clone()
                } else {
                    view.ips.first().cloned()
                }
            };
            let host = get.host.clone().or_else(own).unwrap_or_else(|| "POD-IP".to_owned());
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            let port = match &get.port {
                HookPort::Number(number) => number.to_string(),
                HookPort::Name(name) => {
                    let port = spec.ports.iter().find(|(of, _)| of == name);
                    port.map_or_else(|| name.clone(), |(_, number)| number.to_string())
                }
            };
            let slash = if get.path.starts_with('/') { "" } else { "/" };
            format!("{scheme}://{host}:{port}{slash}{}", get.path)
        }
        Hook::Sleep(seconds) => format!("{seconds}s"),
        Hook::Invalid => String::new(),
    }
}

/// The stops, main containers before sidecars.
fn stops(view: &PodView, pod: &RuntimePod, timeout_seconds: u64) -> Vec<PlannedAction> {
    let running: Vec<_> = pod
        .possibly_running()
        .map(|it| (it, StopPosition::of(view, &it.name)))
        .collect();
    let mut stops: Vec<_> = running
        .iter()
        .map(|(container, position)| {
            let before = running.iter().filter(|(_, other)| position.waits_for(*other));
            let after: Vec<String> = before.map(|(other, _)| other.name.clone()).collect();
            (
                after.len(),
                PlannedAction::StopContainer {
                    container: container.name.clone(),
                    id: container.id.clone(),
                    timeout_seconds,
                    after,
                },
            )
        })
        .collect();
    stops.sort_by_key(|(before, _)| *before);
    stops.into_iter().map(|(_, stop)| stop).collect()
}

fn teardown_of(volume: &PlannedVolume) -> Vec<PlannedAction> {
    let mut actions = Vec::new();
    let is_by_driver = |path: &str| match &volume.teardown {
        PlannedTeardown::Csi { target, .. } => path == target,
        PlannedTeardown::Unmap { .. } | PlannedTeardown::Local { .. } | PlannedTeardown::Unmount => false,
        PlannedTeardown::Unsupported { .. } => true,
    };
    let own = volume.mounts.iter().filter(|mount| !is_by_driver(&mount.path));
    actions.extend(own.map(|mount| PlannedAction::Unmount {
        path: mount.path.clone(),
        fs_type: mount.fs_type.clone(),
    }));
    match &volume.teardown {
        PlannedTeardown::Unmount => {}
        PlannedTeardown::Local { device } => {
            actions.extend(device.iter().map(|path| PlannedAction::Unmount {
                path: path.clone(),
                fs_type: "local".to_owned(),
            }));
        }
        PlannedTeardown::Unmap { path } => actions.push(PlannedAction::UnmapDevice { path: path.clone() }),
        PlannedTeardown::Csi {
            driver,
            handle,
            target,
            staging,
        } => {
            actions.push(PlannedAction::UnpublishVolume {
                driver: driver.clone(),
                handle: handle.clone(),
                target: target.clone(),
            });
            actions.extend(staging.as_ref().map(|path| PlannedAction::UnstageVolume {
                driver: driver.clone(),
                handle: handle.clone(),
                path: path.clone(),
            }));
        }
        PlannedTeardown::Unsupported { why } => {
            let (path, why) = (volume.path.clone(), why.clone());
            actions.push(PlannedAction::LeaveVolume { path, why });
            return actions;
        }
    }
    let directories = volume.subpaths.iter().chain([&volume.path]);
    actions.extend(directories.map(|path| PlannedAction::RemoveDirectory { path: path.clone() }));
    actions
}

fn cleanup(pod: &RuntimePod) -> Vec<PlannedAction> {
    let containers = pod.containers.iter().map(|it| PlannedAction::RemoveContainer {
        container: it.name.clone(),
        id: it.id.clone(),
    });
    let sandboxes = pod
        .sandboxes
        .iter()
        .map(|it| PlannedAction::RemoveSandbox { id: it.id.clone() });
    containers.chain(sandboxes).collect()
}
