//! Decides the steps of a plan. Pure.

use std::path::Path;

use jiff::Timestamp;

use super::{
    facts::{CgroupFacts, ClaimFacts, PlanFacts},
    model::{Plan, PlannedAction, PlannedStep, PlannedWait},
    status::planned_statuses,
};
use crate::{
    model::{
        pod::{ContainerView, Hook, HookPort, PodView},
        step::Step,
    },
    node::{cri::types::RuntimePod, csi_files::TARGET},
    teardown::{
        containers::{hook_of, stop_timeout},
        journal::PodEntry,
        stop_order::StopPosition,
        volumes::{PlannedTeardown, PlannedVolume},
    },
};

const RUNTIME: &str = "the pod in the container runtime";
const CLAIMS: &str = "its prepared claims";
const VOLUMES: &str = "its volumes";
const CGROUPS: &str = "its cgroups";
const USER_IDS: &str = "the file with the user IDs of its user namespace";
const DIRECTORY: &str = "its directory";
const LOGS: &str = "its log directory";

/// What a teardown would do. A step that needs an unreadable fact names that fact.
pub fn plan(facts: &PlanFacts, now: Timestamp) -> Plan {
    let view = &facts.view;
    let grace = facts.grace.counted_by(facts.terminator, view.deletion, now);
    let mut unknown = Vec::new();
    if let Some(why) = &facts.object_unread {
        unknown.push(format!("its object in the API server: {why}"));
    }
    let runtime = known(RUNTIME, &facts.runtime, &mut unknown);
    known(CLAIMS, &facts.claims, &mut unknown);
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
    known(VOLUMES, &facts.volumes, &mut unknown);
    known(CGROUPS, &facts.cgroups, &mut unknown);
    known(USER_IDS, &facts.user_ids, &mut unknown);
    known(DIRECTORY, &facts.directory, &mut unknown);
    known(LOGS, &facts.logs, &mut unknown);

    let status: Vec<PlannedAction> = resting_on(RUNTIME, &facts.runtime, |runtime| {
        vec![PlannedAction::ReportStatus {
            outcomes: planned_statuses(facts, runtime, now),
        }]
    });
    // A terminal status starts the controller's clock for a forced detach.
    let (early_status, late_status) = match facts.may_hold_attached {
        true => (Vec::new(), status),
        false => (status, Vec::new()),
    };
    let finalizers = view
        .object
        .last_known()
        .and_then(|object| object.pod.metadata.finalizers.clone());
    let remove_cgroup = |CgroupFacts { cgroup, path }: &CgroupFacts| PlannedAction::RemoveCgroup {
        cgroup: cgroup.clone(),
        path: path.clone(),
    };
    let delete = PlannedAction::DeleteObject {
        uid: view.pod.uid.to_string(),
        kept_by: finalizers.unwrap_or_default(),
    };
    let mut cleanup = resting_on(RUNTIME, &facts.runtime, cleanup);
    for (what, directory) in [(LOGS, &facts.logs), (DIRECTORY, &facts.directory)] {
        cleanup.extend(resting_on(what, directory, |path| {
            let paths = path.iter().cloned();
            paths.map(|path| PlannedAction::RemoveDirectory { path }).collect()
        }));
    }

    let steps = [
        (Step::Hook, resting_on(RUNTIME, &facts.runtime, |pod| hooks(facts, pod))),
        (
            Step::Term,
            resting_on(RUNTIME, &facts.runtime, |pod| {
                stops(view, pod, stop_timeout(facts.grace.left()).as_secs())
            }),
        ),
        (
            Step::Sandbox,
            resting_on(RUNTIME, &facts.runtime, |pod| {
                let sandboxes = pod.sandboxes.iter();
                sandboxes
                    .map(|it| PlannedAction::StopSandbox { id: it.id.clone() })
                    .collect()
            }),
        ),
        (
            Step::Devices,
            resting_on(CLAIMS, &facts.claims, |claims| claims.iter().map(decision_of).collect()),
        ),
        (Step::Status, early_status),
        (
            Step::Volumes,
            resting_on(VOLUMES, &facts.volumes, |volumes| {
                volumes.iter().flat_map(teardown_of).collect()
            }),
        ),
        (
            Step::Cgroup,
            resting_on(CGROUPS, &facts.cgroups, |cgroups| {
                cgroups.iter().map(remove_cgroup).collect()
            }),
        ),
        (
            Step::Cleanup,
            resting_on(USER_IDS, &facts.user_ids, |path| {
                let paths = path.iter().cloned();
                paths.map(|path| PlannedAction::ReleaseUserIds { path }).collect()
            }),
        ),
        (Step::Status, late_status),
        (Step::Delete, vec![delete]),
        (Step::Cleanup, cleanup),
    ];
    let steps = steps
        .into_iter()
        .filter(|(_, actions)| !actions.is_empty() && !view.mirror);
    let mut is_after_unknown = false;
    let steps = steps.map(|(step, actions)| {
        let has_unknown = actions.iter().any(|it| matches!(it, PlannedAction::NotKnown { .. }));
        let planned = PlannedStep {
            step,
            actions,
            is_after_unknown,
        };
        is_after_unknown |= has_unknown;
        planned
    });
    let steps = steps.collect();
    Plan {
        namespace: view.pod.namespace.to_string(),
        name: view.pod.name.to_string(),
        uid: view.pod.uid.to_string(),
        is_deleted: view.deletion.is_some(),
        is_mirror: view.mirror,
        blocked: facts.blocked.clone(),
        waits_for,
        grace_seconds: grace.total_seconds.unwrap_or(facts.grace.total.as_secs()),
        grace_left_seconds: grace.left.as_secs(),
        grace_counted_from: grace.counted_from,
        steps,
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

/// The actions that follow from a fact; if it could not be read, that these are not known.
fn resting_on<T>(
    what: &str,
    fact: &Result<T, String>,
    actions: impl FnOnce(&T) -> Vec<PlannedAction>,
) -> Vec<PlannedAction> {
    match fact {
        Ok(fact) => actions(fact),
        Err(why) => vec![PlannedAction::NotKnown {
            fact: format!("{what}: {why}"),
        }],
    }
}

fn decision_of(claim: &ClaimFacts) -> PlannedAction {
    match &claim.used_by {
        Some(used_by) => PlannedAction::KeepClaim {
            claim: claim.claim.clone(),
            used_by: used_by.clone(),
        },
        None => PlannedAction::UnprepareClaim {
            claim: claim.claim.clone(),
            drivers: claim.drivers.clone(),
        },
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
        Hook::Invalid | Hook::Large => String::new(),
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
        PlannedTeardown::Csi { .. } => Path::new(path) == Path::new(&volume.path).join(TARGET),
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
            mounted: _,
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

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use serde_json::json;

    use super::*;
    use crate::{
        model::{
            pod::PodObject,
            termination::{GraceStart, Terminator},
        },
        teardown::{grace::OwnGrace, plan::text},
    };

    fn facts() -> PlanFacts {
        let pod = json!({
            "metadata": { "name": "db-0", "namespace": "shop", "uid": "u1", "deletionTimestamp": "2026-01-01T00:09:00Z" },
            "spec": { "containers": [{ "name": "main" }] },
        });
        PlanFacts {
            view: Arc::new(PodView::whole(PodObject::from_value(&pod).unwrap(), true)),
            object_unread: None,
            blocked: Vec::new(),
            entry: None,
            terminator: Terminator::Agent,
            grace: OwnGrace {
                total: Duration::from_secs(30),
                used: None,
            },
            dependents: Ok(None),
            driver_hold: Duration::ZERO,
            runtime: Ok(RuntimePod::default()),
            runtime_name: "containerd".to_owned(),
            claims: Ok(Vec::new()),
            volumes: Ok(Vec::new()),
            may_hold_attached: false,
            cgroups: Ok(Vec::new()),
            user_ids: Ok(None),
            directory: Ok(None),
            logs: Ok(None),
        }
    }

    #[test]
    fn grace_period_is_that_of_the_process_that_terminates_the_pod() {
        let now = "2026-01-01T00:08:40Z".parse().unwrap();
        for (terminator, used, counted_from, left, line) in [
            (
                Terminator::Agent,
                None,
                GraceStart::NotBegun,
                30,
                "Grace period 30s, not begun by this agent\n",
            ),
            (
                Terminator::Agent,
                Some(18),
                GraceStart::Termination,
                12,
                "Grace period 30s, 12s left\n",
            ),
            (
                Terminator::Kubelet,
                None,
                GraceStart::DeleteRequest,
                20,
                "Grace period 60s, 20s left, as the kubelet counts it\n",
            ),
        ] {
            let mut facts = facts();
            let mut view = PodView::clone(&facts.view);
            view.deletion.as_mut().unwrap().grace = Some(60);
            facts.view = Arc::new(view);
            (facts.terminator, facts.grace.used) = (terminator, used.map(Duration::from_secs));
            let plan = plan(&facts, now);
            assert_eq!((plan.grace_counted_from, plan.grace_left_seconds), (counted_from, left));
            let text = text(&plan, false);
            assert!(text.contains(line), "{text}");
        }
    }

    /// Name, the fact that is unknown, and the steps that are not known for that.
    type Row = (&'static str, fn(&mut PlanFacts, String), &'static [Step]);

    #[test]
    fn delete_is_no_next_step_while_an_earlier_one_is_not_known() {
        let no = || "no answer within 2.5s".to_owned();
        let rows: [Row; 5] = [
            ("all is known", |_, _| {}, &[]),
            (
                "runtime",
                |it, why| it.runtime = Err(why),
                &[Step::Hook, Step::Term, Step::Sandbox, Step::Status, Step::Cleanup],
            ),
            ("claims", |it, why| it.claims = Err(why), &[Step::Devices]),
            ("volumes", |it, why| it.volumes = Err(why), &[Step::Volumes]),
            ("cgroups", |it, why| it.cgroups = Err(why), &[Step::Cgroup]),
        ];
        for (name, change, not_known) in rows {
            let mut facts = facts();
            change(&mut facts, no());
            let plan = plan(&facts, Timestamp::UNIX_EPOCH);
            let found = plan.actions().filter_map(|(step, action)| match action {
                PlannedAction::NotKnown { .. } => Some(step),
                _ => None,
            });
            assert_eq!(found.collect::<Vec<_>>(), not_known, "{name}");
            let delete = plan.steps.iter().find(|it| it.step == Step::Delete).unwrap();
            assert_eq!(delete.is_after_unknown, !not_known.is_empty(), "{name}");
            let text = text(&plan, false);
            assert_eq!(
                text.contains("not known: could not read"),
                !not_known.is_empty(),
                "{text}"
            );
            let delete = text.lines().find(|line| line.contains(". delete ")).unwrap();
            assert_eq!(
                delete.contains("only after all steps above"),
                !not_known.is_empty(),
                "{text}"
            );
        }
    }
}
