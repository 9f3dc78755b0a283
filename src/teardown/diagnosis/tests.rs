//! One table: facts, and the causes that follow from them.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use k8s_cri::v1::RuntimeCondition;
use serde_json::{Value, json};

use super::{facts::*, *};
use crate::{
    model::pod::{PodObject, PodView},
    node::{
        cri::types::{Container, ContainerState, RuntimePod, Sandbox},
        holders::{Holders, MountHolder},
        mounts::{Cover, MountTable},
        process_state::{ProcessState, SigtermHandling},
        processes::Shim,
    },
    teardown::grace::OwnGrace,
    why::Why,
};

const NOW: &str = "2026-01-01T00:10:00Z";

fn view(change: impl FnOnce(&mut Value)) -> Arc<PodView> {
    let mut pod = json!({
        "metadata": {
            "name": "db-0", "namespace": "shop", "uid": "u1",
            "deletionTimestamp": "2026-01-01T00:09:00Z", "deletionGracePeriodSeconds": 30,
        },
        "spec": { "containers": [{ "name": "main" }] },
        "status": { "phase": "Running" },
    });
    change(&mut pod);
    Arc::new(PodView::whole(PodObject::from_value(&pod).unwrap(), true))
}

fn container(name: &str, state: ContainerState) -> Container {
    Container::listed(name, state)
}

fn sandbox(is_ready: bool) -> Sandbox {
    Sandbox {
        id: "sandbox-0".to_owned(),
        attempt: 0,
        is_ready,
        created_at: Timestamp::UNIX_EPOCH,
        config_source: None,
        ips: Vec::new(),
    }
}

fn process(pid: i32, container: &str) -> ProcessState {
    ProcessState {
        pid,
        command: "app".to_owned(),
        container: Some(container.to_owned()),
        ..ProcessState::default()
    }
}

fn named(pid: i32, command: &str, cgroup: &str) -> (i32, String) {
    (pid, format!("process {pid} {command:?} in cgroup {cgroup}"))
}

/// A deleted pod beside a kubelet, a minute after its grace period. Nothing of it is on the node.
fn nothing() -> Facts {
    Facts {
        view: view(|_| {}),
        object_unread: None,
        terminated_by: TerminatedBy::Kubelet("kubelet (pid 7)".to_owned()),
        grace: OwnGrace {
            total: Duration::from_secs(30),
            used: Some(Duration::from_secs(90)),
        },
        runtime: Ok(RuntimePod::default()),
        is_runtime_unreachable: false,
        conditions: Ok(Vec::new()),
        named: NamedFacts::default(),
        kill_in_seconds: None,
        cgroups: Ok(CgroupFacts {
            paths: Vec::new(),
            frozen: Ok(Vec::new()),
            processes: Ok(Processes::default()),
        }),
        mounts: Ok(Vec::new()),
        holders: Ok(HashMap::new()),
        pods: HashMap::new(),
        volume_paths: Ok(Vec::new()),
        drivers: Ok(Vec::new()),
    }
}

fn not_shown() -> Option<ObjectUnread> {
    Some(ObjectUnread::NotShown("403".to_owned()))
}

fn no_answer() -> Option<ObjectUnread> {
    Some(ObjectUnread::NoAnswer("connection refused".to_owned()))
}

/// As [`nothing`], with a running container.
fn running() -> Facts {
    let mut facts = nothing();
    facts.runtime = Ok(RuntimePod {
        sandboxes: vec![sandbox(true)],
        containers: vec![container("main", ContainerState::Running)],
    });
    set_processes(&mut facts, vec![process(41, "main-0")]);
    facts
        .named
        .processes
        .insert("main-0".to_owned(), named(41, "app", "/kubepods/podu1/main-0"));
    facts
}

fn stop_shim(facts: &mut Facts) {
    facts.named.stopped_shims.push(Shim {
        pid: 40,
        program: "containerd-shim-runc-v2".to_owned(),
        id: "sandbox-0".to_owned(),
        is_stopped: true,
        children: Vec::new(),
    });
}

/// As [`running`], and all containers have exited.
fn exited() -> Facts {
    let mut facts = nothing();
    facts.runtime = Ok(RuntimePod {
        sandboxes: vec![sandbox(false)],
        containers: vec![container("main", ContainerState::Exited)],
    });
    facts
}

/// As [`exited`], and the API shows it.
fn reported() -> Facts {
    let mut facts = exited();
    facts.view = view(|pod| pod["status"]["phase"] = "Succeeded".into());
    facts
}

fn set_processes(facts: &mut Facts, all: Vec<ProcessState>) {
    facts.cgroups.as_mut().unwrap().processes = Ok(Processes { all, more: 0 });
}

fn processes(facts: &mut Facts) -> &mut Vec<ProcessState> {
    &mut facts.cgroups.as_mut().unwrap().processes.as_mut().unwrap().all
}

fn in_grace(facts: &mut Facts) {
    facts.view = view(|pod| pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:10:20Z".into());
    facts.grace.used = Some(Duration::from_secs(10));
}

fn mount(facts: &mut Facts, fs_type: &str, outside: &[i32]) {
    let line = format!("5 1 0:5 / /pods/u1/volumes/v rw - {fs_type} server:/v rw");
    let table = MountTable::parse(line.as_bytes(), Path::new("/")).unwrap();
    facts.mounts = Ok(table.all().map(|mount| (mount.clone(), None)).collect());
    let outside = outside.iter().map(|pid| MountHolder {
        pid: *pid,
        command: "tail".to_owned(),
        container: None,
        usage: "working directory",
        is_in_other_namespace: true,
    });
    let holders = Holders {
        processes: outside.collect(),
        ..Holders::default()
    };
    facts.holders = Ok([(5, holders)].into());
}

fn missing_driver(is_certain: bool) -> MissingDriver {
    MissingDriver {
        kind: Kind::Csi,
        driver: "csi.example.com".to_owned(),
        needed_by: "volume v".to_owned(),
        mounted: Vec::new(),
        why: "none of 0 drivers that answer has this name".to_owned(),
        is_certain,
        pods: Vec::new(),
    }
}

/// Severities and kinds, in their order, such as `blocking frozen`.
fn kinds(causes: &[Cause]) -> Vec<String> {
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let kind = |cause: &Cause| {
        let json = serde_json::to_value(cause).unwrap();
        format!("{} {}", word(&json["severity"]), word(&json["kind"]))
    };
    causes.iter().map(kind).collect()
}

/// Name, facts, their change, and the causes but for `kubeletTerminates`.
type Row = (&'static str, fn() -> Facts, fn(&mut Facts), &'static str);

#[test]
fn causes_follow_from_facts() {
    let rows: &[Row] = &[
        (
            "not deleted, runs",
            running,
            |it| it.view = view(|pod| drop(pod["metadata"].as_object_mut().unwrap().remove("deletionTimestamp"))),
            "info notDeleted",
        ),
        (
            "ended, not deleted",
            exited,
            |it| {
                it.view = view(|pod| {
                    pod["metadata"].as_object_mut().unwrap().remove("deletionTimestamp");
                    pod["status"]["phase"] = "Failed".into();
                });
            },
            "info endedNotDeleted",
        ),
        (
            "mirror",
            running,
            |it| it.view = view(|pod| pod["metadata"]["annotations"] = json!({ "kubernetes.io/config.mirror": "x" })),
            "info mirrorPod",
        ),
        ("in its grace period", running, in_grace, "waiting gracePeriod"),
        (
            "hook in the grace period",
            running,
            |it| {
                it.view = view(|pod| {
                    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:10:20Z".into();
                    pod["spec"]["containers"][0]["lifecycle"] = json!({ "preStop": { "exec": { "command": ["x"] } } });
                });
            },
            "waiting preStopHook, waiting gracePeriod",
        ),
        (
            "sidecar waits for its main container",
            running,
            |it| {
                it.view = view(|pod| {
                    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:10:20Z".into();
                    pod["spec"]["initContainers"] = json!([{ "name": "mesh", "restartPolicy": "Always" }]);
                });
                let runtime = it.runtime.as_mut().unwrap();
                runtime.containers.push(container("mesh", ContainerState::Running));
            },
            "waiting sidecarWaits, waiting gracePeriod",
        ),
        (
            "ignores SIGTERM in the grace period",
            running,
            |it| {
                in_grace(it);
                processes(it)[0].sigterm = SigtermHandling::Ignored;
            },
            "waiting sigtermNotHandled, waiting gracePeriod",
        ),
        (
            "PID 1 without handler after the grace period",
            running,
            |it| {
                let process = &mut processes(it)[0];
                process.sigterm = SigtermHandling::InitWithoutHandler;
            },
            "blocking sigtermNotHandled",
        ),
        (
            "only the first process gets SIGTERM",
            running,
            |it| {
                in_grace(it);
                let mut child = process(42, "main-0");
                child.sigterm = SigtermHandling::Ignored;
                processes(it).push(child);
            },
            "waiting gracePeriod",
        ),
        (
            "without the runtime's PID the init of the container counts",
            running,
            |it| {
                it.named.processes.clear();
                let process = &mut processes(it)[0];
                (process.is_init, process.sigterm) = (true, SigtermHandling::InitWithoutHandler);
            },
            "blocking sigtermNotHandled",
        ),
        (
            "runs after its grace period for no known cause",
            running,
            |_| {},
            "blocking stillRuns",
        ),
        (
            "its shim is stopped",
            running,
            stop_shim,
            "blocking shimStopped, blocking stillRuns",
        ),
        (
            "its shim is stopped, and nothing needs it",
            exited,
            stop_shim,
            "waiting phaseNotTerminal",
        ),
        (
            "frozen",
            running,
            |it| it.cgroups.as_mut().unwrap().frozen = Ok(vec!["/cg".to_owned()]),
            "blocking frozen",
        ),
        (
            "frozen with cgroup v1: in state D, and the same cause",
            running,
            |it| {
                let cgroups = it.cgroups.as_mut().unwrap();
                cgroups.frozen = Ok(vec!["/cg".to_owned(), "/cg/main-0".to_owned()]);
                cgroups.processes.as_mut().unwrap().all[0].uninterruptible_in = Some("__refrigerator".to_owned());
            },
            "blocking frozen",
        ),
        (
            "state D",
            running,
            |it| {
                let process = &mut processes(it)[0];
                process.uninterruptible_in = Some("nfs_wait".to_owned());
            },
            "blocking uninterruptible",
        ),
        (
            "state of a container unknown",
            running,
            |it| it.runtime.as_mut().unwrap().containers[0].state = ContainerState::Unknown,
            "blocking containerUnknown",
        ),
        (
            "processes without a running container",
            reported,
            |it| set_processes(it, vec![process(41, "other")]),
            "blocking processesLeft",
        ),
        (
            "the process of a ready sandbox is no leftover",
            exited,
            |it| {
                it.runtime.as_mut().unwrap().sandboxes[0].is_ready = true;
                set_processes(it, vec![process(41, "sandbox-0")]);
            },
            "blocking sandboxNotStopped, later phaseNotTerminal",
        ),
        (
            "network plugin down, sandbox ready",
            exited,
            |it| {
                it.runtime.as_mut().unwrap().sandboxes[0].is_ready = true;
                it.conditions = Ok(vec![RuntimeCondition {
                    r#type: "NetworkReady".to_owned(),
                    status: false,
                    reason: "NetworkPluginNotReady".to_owned(),
                    message: "cni plugin not initialized".to_owned(),
                }]);
            },
            "blocking sandboxNotStopped, blocking runtimeNotReady, later phaseNotTerminal",
        ),
        (
            "conditions that are no readiness hold nothing",
            running,
            |it| {
                in_grace(it);
                let condition = |name: &str| RuntimeCondition {
                    r#type: name.to_owned(),
                    status: false,
                    reason: "x".to_owned(),
                    message: "x".to_owned(),
                };
                it.conditions = Ok(vec![
                    condition("ContainerdHasNoDeprecationWarnings"),
                    condition("RuntimeReady"),
                ]);
            },
            "blocking runtimeNotReady, waiting gracePeriod",
        ),
        (
            "runtime unreachable",
            running,
            |it| {
                it.runtime = Err(Why::new("connection refused"));
                it.is_runtime_unreachable = true;
            },
            "blocking runtimeUnreachable",
        ),
        (
            "runtime slow: nothing is concluded",
            reported,
            |it| it.runtime = Err(Why::new("no answer within 2.5s")),
            "unknown unknown",
        ),
        (
            "mount busy outside of the pod",
            reported,
            |it| mount(it, "tmpfs", &[99]),
            "blocking mountBusy",
        ),
        (
            "busy mount of a pod that runs comes later",
            running,
            |it| {
                in_grace(it);
                mount(it, "tmpfs", &[99]);
            },
            "waiting gracePeriod, later mountBusy",
        ),
        (
            "mount of a pod that runs, used by itself only",
            running,
            |it| {
                in_grace(it);
                mount(it, "tmpfs", &[]);
            },
            "waiting gracePeriod",
        ),
        (
            "mount left",
            reported,
            |it| mount(it, "tmpfs", &[]),
            "waiting mountLeft",
        ),
        (
            "mount left that only a missing driver unmounts",
            reported,
            |it| {
                mount(it, "tmpfs", &[]);
                let mut missing = missing_driver(true);
                missing.mounted = vec!["/pods/u1/volumes/v".to_owned()];
                it.drivers = Ok(vec![missing]);
            },
            "blocking driverMissing",
        ),
        (
            "holders unknown: a mount is not called unused",
            reported,
            |it| {
                mount(it, "tmpfs", &[]);
                it.holders = Err(Why::new("no answer within 3.5s"));
            },
            "unknown unknown",
        ),
        (
            "mount of a server",
            reported,
            |it| mount(it, "nfs4", &[]),
            "blocking serverMount",
        ),
        (
            "mount of a server of a pod that runs comes later",
            running,
            |it| {
                in_grace(it);
                mount(it, "nfs4", &[]);
            },
            "waiting gracePeriod, later serverMount",
        ),
        (
            "volume directories left",
            reported,
            |it| it.volume_paths = Ok(vec!["/pods/u1/volumes/v".to_owned()]),
            "waiting volumeDirectoriesLeft",
        ),
        (
            "driver missing",
            reported,
            |it| it.drivers = Ok(vec![missing_driver(true)]),
            "blocking driverMissing, waiting finalDeletePending",
        ),
        (
            "a driver that may only be slow is not called missing",
            reported,
            |it| it.drivers = Ok(vec![missing_driver(false)]),
            "waiting finalDeletePending, unknown unknown",
        ),
        (
            "a zombie keeps the cgroup for a moment: nothing blocks",
            reported,
            |it| {
                set_processes(it, vec![process(41, "main-0")]);
                processes(it)[0].is_zombie = true;
            },
            "info nothingFound",
        ),
        (
            "a cgroup without processes is left: the node is not finished",
            reported,
            |it| it.cgroups.as_mut().unwrap().paths = vec!["/kubepods/pod-u1".to_owned()],
            "waiting cgroupsLeft",
        ),
        (
            "phase not terminal, node clean",
            exited,
            |_| {},
            "waiting phaseNotTerminal",
        ),
        (
            "all done but the final delete",
            reported,
            |_| {},
            "waiting finalDeletePending",
        ),
        (
            "only a finalizer is left",
            reported,
            |it| {
                it.view = view(|pod| {
                    pod["status"]["phase"] = "Failed".into();
                    pod["metadata"]["finalizers"] = json!(["example.com/hold"]);
                });
            },
            "blocking finalizer",
        ),
        (
            "a mount that another one hides",
            reported,
            |it| {
                mount(it, "ext4", &[]);
                let (mount, cover) = &mut it.mounts.as_mut().unwrap()[0];
                *cover = Some(Cover::new(mount, &MountTable::default()));
            },
            "blocking mountHidden",
        ),
        (
            "finalizer of a pod that runs comes later",
            running,
            |it| it.view = view(|pod| pod["metadata"]["finalizers"] = json!(["example.com/hold"])),
            "blocking stillRuns, later finalizer",
        ),
        (
            "no kubelet, and the agent may not",
            running,
            |it| {
                in_grace(it);
                it.terminated_by = TerminatedBy::Blocked("standing by".to_owned());
            },
            "blocking agentBlocked, waiting gracePeriod",
        ),
        (
            "paused: the hook and the signal are not waited for before the agent begins",
            running,
            |it| {
                in_grace(it);
                it.view = view(|pod| {
                    pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"] = json!(["drain"]);
                });
                processes(it)[0].sigterm = SigtermHandling::Ignored;
                it.grace.used = None;
                it.terminated_by = TerminatedBy::Paused("paused since 00:05 by uid 0".to_owned());
            },
            "blocking agentPaused, later preStopHook, later sigtermNotHandled, later gracePeriod",
        ),
        (
            "paused during the stop, which continues to a safe point",
            running,
            |it| {
                in_grace(it);
                processes(it)[0].sigterm = SigtermHandling::Ignored;
                it.terminated_by = TerminatedBy::Paused("paused since 00:05 by uid 0".to_owned());
            },
            "blocking agentPaused, waiting sigtermNotHandled, waiting gracePeriod",
        ),
        (
            "the agent terminates it",
            running,
            |it| {
                in_grace(it);
                it.terminated_by = TerminatedBy::Agent;
            },
            "waiting gracePeriod",
        ),
        (
            "object not read",
            running,
            |it| {
                in_grace(it);
                it.object_unread = not_shown();
            },
            "waiting gracePeriod, unknown unknown",
        ),
        (
            "the API server does not answer the agent: the kubelet has its own connection",
            exited,
            |it| it.object_unread = no_answer(),
            "unknown apiServerUnreachable",
        ),
        (
            "the API server does not answer the agent that has stopped all containers",
            exited,
            |it| {
                it.object_unread = no_answer();
                it.terminated_by = TerminatedBy::Agent;
            },
            "blocking apiServerUnreachable",
        ),
        (
            "the API server does not answer the agent, which stops containers without it",
            running,
            |it| {
                in_grace(it);
                it.object_unread = no_answer();
                it.terminated_by = TerminatedBy::Agent;
            },
            "waiting gracePeriod, later apiServerUnreachable",
        ),
        (
            "the API server does not answer: a deletion may not have been seen",
            running,
            |it| {
                it.view = view(|pod| pod["metadata"]["deletionTimestamp"] = Value::Null);
                it.object_unread = no_answer();
            },
            "unknown apiServerUnreachable, info notDeleted",
        ),
        (
            "object not read: nothing is concluded about its phase",
            exited,
            |it| it.object_unread = not_shown(),
            "unknown unknown",
        ),
        (
            "object not read: nothing is concluded about its finalizers",
            reported,
            |it| it.object_unread = not_shown(),
            "unknown unknown",
        ),
    ];
    let now = NOW.parse().unwrap();
    for (name, facts, change, expected) in rows {
        let mut facts = facts();
        change(&mut facts);
        let causes = diagnose(&facts, now);
        let mut found = kinds(&causes);
        // Within a severity the order is that of the teardown; information comes last.
        let mut expected: Vec<String> = expected
            .split(", ")
            .filter(|it| !it.is_empty())
            .map(str::to_owned)
            .collect();
        let is_by_kubelet = matches!(facts.terminated_by, TerminatedBy::Kubelet(_));
        if is_by_kubelet && facts.view.deletion.is_some() && !facts.view.mirror {
            expected.push("info kubeletTerminates".to_owned());
        }
        let severity = |line: &String| line.split(' ').next().unwrap().to_owned();
        assert_eq!(
            found.iter().map(severity).collect::<Vec<_>>(),
            expected.iter().map(severity).collect::<Vec<_>>(),
            "{name}: {found:?}"
        );
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn remedies_name_the_one_who_acts() {
    let stages: [fn() -> Facts; 4] = [running, exited, reported, || {
        let mut facts = reported();
        mount(&mut facts, "tmpfs", &[]);
        facts.volume_paths = Ok(vec!["/pods/u1/volumes/w".to_owned()]);
        facts
    }];
    let cases: [(TerminatedBy, &str, &[&str]); 3] = [
        (TerminatedBy::Kubelet("pid 7".to_owned()), "kubelet", &["agent"]),
        (TerminatedBy::Agent, "this agent", &["kubelet", "next sync"]),
        (
            TerminatedBy::Blocked("paused".to_owned()),
            "no process does it now",
            &["next sync", "'s log"],
        ),
    ];
    for (stage, (terminated_by, named, others)) in stages
        .iter()
        .flat_map(|stage| cases.iter().map(move |case| (stage, case)))
    {
        let mut facts = stage();
        facts.terminated_by = terminated_by.clone();
        let causes = diagnose(&facts, NOW.parse().unwrap());
        let stuck = [Severity::Blocking, Severity::Waiting];
        let of_pod = |it: &&Cause| stuck.contains(&it.severity) && it.kind != CauseKind::AgentBlocked;
        let remedies: Vec<_> = causes.iter().filter(of_pod).map(|cause| &cause.remedy).collect();
        assert!(!remedies.is_empty());
        for remedy in remedies {
            let names_another = others.iter().any(|other| remedy.contains(other));
            assert!(
                remedy.contains(named) || remedy.contains("next sync"),
                "{terminated_by:?}: {remedy}"
            );
            assert!(!names_another, "{terminated_by:?}: {remedy}");
        }
    }
}

#[test]
fn what_still_runs_is_named_with_its_cgroup_and_with_a_kill_that_is_due() {
    let messages = |facts: &Facts| {
        let causes = diagnose(facts, NOW.parse().unwrap()).into_iter();
        let blocking = causes.filter(|cause| cause.severity == Severity::Blocking);
        blocking.map(|cause| cause.message).collect::<Vec<_>>()
    };
    let mut facts = running();
    let runs =
        "container main still runs 60s after the grace period as process 41 \"app\" in cgroup /kubepods/podu1/main-0";
    assert_eq!(messages(&facts), [runs]);
    facts.kill_in_seconds = Some(12);
    let kill = "; this agent sends it SIGKILL in 12s, unless the runtime stops it first";
    assert_eq!(messages(&facts), [format!("{runs}{kill}")]);
    let pod = facts.runtime.as_mut().unwrap();
    pod.containers[0].state = ContainerState::Exited;
    set_processes(&mut facts, Vec::new());
    assert_eq!(
        messages(&facts),
        ["all containers have exited, and sandbox sandbox-0 is not stopped"]
    );
    let pause = named(42, "pause", "/kubepods");
    facts.named.processes.insert("sandbox-0".to_owned(), pause);
    let lives = "sandbox sandbox-0 is not stopped: its process 42 \"pause\" in cgroup /kubepods runs";
    assert_eq!(messages(&facts), [format!("{lives}{kill}")]);
}

#[test]
fn no_fact_that_could_not_be_read_leads_to_another_conclusion() {
    let now = NOW.parse().unwrap();
    let mut facts = running();
    let no = || Why::new("no");
    facts.runtime = Err(no());
    facts.conditions = Err(no());
    facts.cgroups = Err(no());
    facts.mounts = Err(no());
    facts.holders = Err(no());
    facts.volume_paths = Err(no());
    facts.drivers = Err(no());
    let causes = diagnose(&facts, now);
    let (unknown, others): (Vec<_>, Vec<_>) = causes.iter().partition(|cause| cause.severity == Severity::Unknown);
    assert_eq!(
        kinds(&others.into_iter().cloned().collect::<Vec<_>>()),
        ["info kubeletTerminates"]
    );
    assert_eq!(unknown.len(), 5, "{unknown:?}");
    assert!(conclusion(&causes).contains("could not be read"));
}

#[test]
fn control_characters_of_processes_are_escaped() {
    let mut facts = running();
    let process = &mut processes(&mut facts)[0];
    process.command = "a\u{1b}[2J\nb".to_owned();
    process.sigterm = SigtermHandling::Ignored;
    let causes = diagnose(&facts, NOW.parse().unwrap());
    assert!(causes.iter().all(|cause| !cause.message.contains(char::is_control)));
}

#[test]
fn grace_period_runs_from_the_moment_when_this_agent_begins() {
    let message = |terminated_by, used: Option<u64>| {
        let mut facts = running();
        // By the API server's clock 20 s are left.
        in_grace(&mut facts);
        facts.terminated_by = terminated_by;
        facts.grace.used = used.map(Duration::from_secs);
        let causes = diagnose(&facts, NOW.parse().unwrap());
        let grace = causes.into_iter().find(|cause| cause.kind == CauseKind::GracePeriod);
        grace.map(|cause| cause.message)
    };
    let paused = || TerminatedBy::Blocked("paused".to_owned());
    let kubelet = TerminatedBy::Kubelet("pid 7".to_owned());
    for (terminated_by, used, expected) in [
        (TerminatedBy::Agent, Some(18), "its grace period has 12s left of 30s"),
        (paused(), Some(18), "its grace period has 12s left of 30s"),
        (
            paused(),
            None,
            "its grace period of 30s begins when this agent begins to terminate the pod",
        ),
        (
            kubelet,
            None,
            "its grace period has 20s left of 30s, by the API server's clock",
        ),
    ] {
        assert_eq!(message(terminated_by, used).as_deref(), Some(expected));
    }
    assert_eq!(message(paused(), Some(30)), None, "it has expired");
}

#[test]
fn users_of_a_mount_are_named_with_their_pods_and_as_outside_only_if_the_pods_own_are_known() {
    let message = |change: fn(&mut Facts)| {
        let mut facts = reported();
        mount(&mut facts, "tmpfs", &[99]);
        change(&mut facts);
        let mut causes = diagnose(&facts, NOW.parse().unwrap()).into_iter();
        causes.find(|it| it.kind == CauseKind::MountBusy).unwrap().message
    };
    let more = |facts: &mut Facts| facts.cgroups.as_mut().unwrap().processes.as_mut().unwrap().more = 1;
    let user = "by process 99 \"tail\"";
    let outside = format!("mount /pods/u1/volumes/v is in use outside of the pod {user}");
    let unclear = format!("mount /pods/u1/volumes/v is in use {user}; whether they are the pod's own is not known");
    assert_eq!(message(|_| {}), outside);
    assert_eq!(message(more), outside);
    assert_eq!(message(|it| it.runtime = Err(Why::new("no"))), outside);
    assert_eq!(
        message(|it| {
            it.runtime = Err(Why::new("no"));
            it.cgroups.as_mut().unwrap().processes.as_mut().unwrap().more = 1;
        }),
        unclear
    );
    assert_eq!(
        message(|it| (it.runtime, it.cgroups) = (Err(Why::new("no")), Err(Why::new("no")))),
        unclear
    );
    let with_pod = message(|it| drop(it.pods.insert(99, "shop/web".to_owned())));
    assert_eq!(with_pod, format!("{outside} of pod shop/web"));
}

#[test]
fn volume_of_an_uninstalled_csi_driver_has_its_commands_in_their_order() {
    let remedy_of = |kind, mounted: &[&str], terminated_by: TerminatedBy| {
        let mut facts = exited();
        facts.terminated_by = terminated_by;
        facts.drivers = Ok(vec![MissingDriver {
            kind,
            mounted: mounted.iter().map(|&path| path.to_owned()).collect(),
            ..missing_driver(true)
        }]);
        let mut causes = diagnose(&facts, NOW.parse().unwrap()).into_iter();
        causes.find(|it| it.kind == CauseKind::DriverMissing).unwrap().remedy
    };
    let text = remedy_of(Kind::Csi, &["/pods/u/mount", "/csi/globalmount"], TerminatedBy::Agent);
    let commands = "umount /pods/u/mount && umount /csi/globalmount && pod-teardown approve pod/shop/db-0";
    assert!(text.ends_with(commands), "{text}");
    let text = remedy_of(Kind::Csi, &[], TerminatedBy::Agent);
    assert!(
        text.ends_with("never returns: pod-teardown approve pod/shop/db-0"),
        "{text}"
    );
    // Neither has an approval.
    for (kind, terminated_by) in [
        (Kind::Dra, TerminatedBy::Agent),
        (Kind::Csi, TerminatedBy::Kubelet("pid 7".to_owned())),
    ] {
        let text = remedy_of(kind, &["/m"], terminated_by);
        assert!(
            text.contains("start the driver's pod") && !text.contains("approve"),
            "{text}"
        );
    }
}
