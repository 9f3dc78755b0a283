//! Arbitrary pods, statuses and runtimes, including invalid ones.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container as Spec, ContainerRestartRule, ContainerRestartRuleOnExitCodes, ContainerState, ContainerStateRunning,
    ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, EphemeralContainer, Pod, PodCondition, PodIP,
    PodReadinessGate, PodSpec, PodStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::fixture::{STAGES, UID};
use crate::{
    model::termination::Eviction,
    node::cri::types::{Container, ContainerState as RuntimeState, RuntimePod, Sandbox, SandboxState},
    teardown::status::{Messages, StatusInput, StatusStage, generate},
};
// --- anything that the API may show ---

fn word(words: &'static [&'static str]) -> impl Strategy<Value = String> {
    select(words).prop_map(str::to_owned)
}

fn name() -> impl Strategy<Value = String> {
    word(&["a", "b", "c", "..", ""])
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![word(&["", "x"]), "\\PC{0,40}", Just("€".repeat(9000))]
}

fn timestamp() -> impl Strategy<Value = Timestamp> {
    let usual = (0..4_000_000_000_i64, 0..1_000_000_000_i32).prop_map(|(s, n)| Timestamp::new(s, n).unwrap());
    prop_oneof![8 => usual, 1 => Just(Timestamp::UNIX_EPOCH)]
}

/// In whole seconds, as in the API.
fn time() -> impl Strategy<Value = Option<Time>> {
    of(timestamp().prop_map(|time| Time(Timestamp::from_second(time.as_second()).unwrap())))
}

fn number() -> impl Strategy<Value = i32> {
    prop_oneof![4 => 0..3_i32, 1 => any::<i32>()]
}

fn state() -> impl Strategy<Value = ContainerState> {
    let running = time().prop_map(|started_at| ContainerStateRunning { started_at });
    let reason = || {
        of(word(&[
            "CrashLoopBackOff",
            "ImagePullBackOff",
            "RestartingAllContainers",
            "Error",
            "",
        ]))
    };
    let waiting = (reason(), of(text())).prop_map(|(reason, message)| ContainerStateWaiting { reason, message });
    let end = (of(name()), number(), time(), time(), of(text()), reason()).prop_map(
        |(container_id, exit_code, started_at, finished_at, message, reason)| ContainerStateTerminated {
            container_id,
            exit_code,
            finished_at,
            message,
            reason,
            signal: None,
            started_at,
        },
    );
    let end = end.boxed();
    prop_oneof![
        Just(ContainerState::default()),
        running.prop_map(|running| ContainerState {
            running: Some(running),
            ..Default::default()
        }),
        waiting.prop_map(|waiting| ContainerState {
            waiting: Some(waiting),
            ..Default::default()
        }),
        end.clone().prop_map(|end| ContainerState {
            terminated: Some(end),
            ..Default::default()
        }),
        end.prop_map(|end| ContainerState {
            terminated: Some(end),
            running: Some(Default::default()),
            waiting: Some(Default::default())
        }),
    ]
}

fn entry() -> impl Strategy<Value = ContainerStatus> {
    let id = of(word(&[
        "containerd://a-0",
        "containerd://b-0",
        "containerd://a-1",
        "junk",
        "",
    ]));
    (
        name(),
        id,
        of(state()),
        of(state()),
        number(),
        any::<bool>(),
        of(any::<bool>()),
        of(text()),
    )
        .prop_map(
            |(name, container_id, state, last_state, restart_count, ready, started, stop_signal)| ContainerStatus {
                name,
                container_id,
                state,
                last_state,
                restart_count,
                ready,
                started,
                stop_signal,
                ..Default::default()
            },
        )
}

fn condition() -> impl Strategy<Value = PodCondition> {
    let kind = word(&[
        "Ready",
        "ContainersReady",
        "Initialized",
        "PodScheduled",
        "DisruptionTarget",
        "mine",
        "gate",
        "",
    ]);
    let reason = of(word(&["TerminationByKubelet", "EvictionByEvictionAPI", "", "Odd"]));
    (
        kind,
        word(&["True", "False", "Unknown", "?"]),
        reason,
        of(text()),
        time(),
        of(any::<i64>()),
    )
        .prop_map(
            |(type_, status, reason, message, last_transition_time, observed_generation)| PodCondition {
                type_,
                status,
                reason,
                message,
                last_transition_time,
                observed_generation,
                last_probe_time: None,
            },
        )
}

fn phase() -> impl Strategy<Value = Option<String>> {
    of(word(&[
        "Pending",
        "Running",
        "Running",
        "Succeeded",
        "Failed",
        "Unknown",
        "",
        "Odd",
    ]))
}

fn ip() -> impl Strategy<Value = String> {
    word(&["10.0.0.7", "10.0.0.8", "fd00::7", "junk", ""])
}

pub(super) fn status() -> impl Strategy<Value = PodStatus> {
    let entries = || of(vec(entry(), 0..4));
    // The server accepts no duplicate addresses.
    let ips = of(subsequence(&["10.0.0.7", "10.0.0.8", "fd00::7", "junk", ""], 0..4).prop_shuffle());
    let ips = ips.prop_map(|ips| Some(ips?.into_iter().map(|ip| PodIP { ip: ip.to_owned() }).collect()));
    let lists = (entries(), entries(), entries(), of(vec(condition(), 0..6)));
    (
        lists,
        phase(),
        of(text()),
        of(text()),
        of(ip()),
        ips,
        time(),
        of(any::<i64>()),
    )
        .prop_map(
            |(
                (regular, init, ephemeral, conditions),
                phase,
                reason,
                message,
                pod_ip,
                pod_ips,
                start_time,
                generation,
            )| {
                PodStatus {
                    container_statuses: regular,
                    init_container_statuses: init,
                    ephemeral_container_statuses: ephemeral,
                    conditions,
                    phase,
                    reason,
                    message,
                    pod_ip,
                    pod_ips,
                    start_time,
                    observed_generation: generation,
                    qos_class: Some("Burstable".into()),
                    ..Default::default()
                }
            },
        )
}

// --- anything that a spec may request ---

fn policy() -> impl Strategy<Value = Option<String>> {
    of(word(&["Always", "OnFailure", "Never", "Never", "Odd"]))
}

fn container() -> impl Strategy<Value = Spec> {
    let codes = (word(&["In", "NotIn", "?"]), of(vec(number(), 0..3)))
        .prop_map(|(operator, values)| ContainerRestartRuleOnExitCodes { operator, values });
    let rule = (word(&["Restart", "RestartAllContainers", "?"]), of(codes))
        .prop_map(|(action, exit_codes)| ContainerRestartRule { action, exit_codes });
    let rules = prop_oneof![4 => Just(None), 1 => of(vec(rule, 0..3))];
    (
        name(),
        prop_oneof![2 => Just(None), 1 => policy()],
        rules,
        any::<bool>(),
    )
        .prop_map(|(name, restart_policy, restart_policy_rules, probed)| Spec {
            name,
            restart_policy,
            restart_policy_rules,
            readiness_probe: probed.then(Default::default),
            ..Default::default()
        })
}

fn spec() -> impl Strategy<Value = PodSpec> {
    let ephemeral = vec(
        name().prop_map(|name| EphemeralContainer {
            name,
            ..Default::default()
        }),
        0..3,
    );
    let gates = of(vec(
        Just(PodReadinessGate {
            condition_type: "gate".into(),
        }),
        0..2,
    ));
    let lists = (vec(container(), 0..4), of(vec(container(), 0..4)), of(ephemeral), gates);
    let deadline = prop_oneof![3 => Just(None), 1 => of(any::<i64>())];
    (lists, policy(), of(any::<bool>()), deadline).prop_map(
        |((containers, init_containers, ephemeral_containers, readiness_gates), policy, host_network, deadline)| {
            PodSpec {
                containers,
                init_containers,
                ephemeral_containers,
                readiness_gates,
                restart_policy: policy,
                host_network,
                active_deadline_seconds: deadline,
                ..Default::default()
            }
        },
    )
}

fn pod() -> impl Strategy<Value = Pod> {
    (of(spec()), of(status()), of(any::<i64>()), time()).prop_map(|(spec, status, generation, deleted)| Pod {
        metadata: ObjectMeta {
            uid: Some(UID.into()),
            labels: Some([("team".to_owned(), "shop".to_owned())].into()),
            finalizers: Some(vec!["example.com/hold".into()]),
            generation,
            deletion_timestamp: deleted,
            ..Default::default()
        },
        spec,
        status,
    })
}

// --- anything that a runtime may report ---

fn instance() -> impl Strategy<Value = Container> {
    use RuntimeState::{Created, Exited, Running, Unknown};
    let states = select(&[Created, Running, Exited, Exited, Exited, Unknown][..]);
    let times = (timestamp(), of(timestamp()), of(timestamp()));
    (name(), 0..3_u32, states, times, number(), text(), number()).prop_map(
        |(name, attempt, state, (created_at, started_at, finished_at), exit_code, message, restart_count)| Container {
            id: format!("{name}-{attempt}"),
            name,
            attempt,
            sandbox_id: "sandbox-0".into(),
            state,
            created_at,
            started_at,
            finished_at,
            exit_code,
            reason: String::new(),
            message,
            image: String::new(),
            image_ref: String::new(),
            restart_count,
            termination_message_file: None,
            message_falls_back_to_log: false,
            log_path: String::new(),
            is_unread: false,
        },
    )
}

fn observed() -> impl Strategy<Value = RuntimePod> {
    let state = select(&[SandboxState::Ready, SandboxState::NotReady][..]);
    let sandbox = (state, timestamp(), vec(ip(), 0..4)).prop_map(|(state, created_at, ips)| Sandbox {
        id: "sandbox-0".into(),
        attempt: 0,
        state,
        created_at,
        annotations: BTreeMap::new(),
        ips,
    });
    (vec(sandbox, 0..3), vec(instance(), 0..6)).prop_map(|(sandboxes, containers)| RuntimePod { sandboxes, containers })
}

fn eviction() -> impl Strategy<Value = Option<Eviction>> {
    let any = (text(), text(), of(text()));
    of(any.prop_map(|(reason, message, disruption)| Eviction {
        reason,
        message,
        disruption,
    }))
}

/// One pod in API and runtime.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub pod: Pod,
    pub observed: RuntimePod,
    pub eviction: Option<Eviction>,
    pub messages: Messages,
    pub stage: StatusStage,
    pub now: Timestamp,
}

pub(super) fn world() -> impl Strategy<Value = World> {
    let own = text().prop_map(|text| Messages::from_iter([("a-0", text)]));
    (pod(), observed(), eviction(), own, select(&STAGES[..]), timestamp()).prop_map(
        |(pod, observed, eviction, messages, stage, now)| World {
            pod,
            observed,
            eviction,
            messages,
            stage,
            now,
        },
    )
}

impl World {
    pub(super) fn wanted(&self) -> PodStatus {
        generate(&StatusInput {
            pod: &self.pod,
            observed: &self.observed,
            runtime_name: "containerd",
            now: self.now,
            stage: self.stage,
            eviction: self.eviction.as_ref(),
            messages: &self.messages,
        })
    }
}
