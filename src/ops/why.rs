//! Explains why a pod of this node still exists, from the trace of its termination. Pure.

use strum::VariantArray as _;

use crate::{
    explanation::{
        Explanation, ObjectFacts,
        cause::{Cause, CauseKind, Severity},
    },
    model::{
        failure::names_network,
        mismatch::MismatchKind,
        trace::{Obstacle, Stage, Step, Trace},
    },
    ops::progress::{describe, pause_reason},
    teardown::diagnosis::{conclusion as conclusion_of_causes, facts::Facts},
    words::{escape_control_chars, format_count, seconds},
};

/// Explains a pod that this agent terminates. `blocked`: why the agent may not act, if it may not.
pub fn explain_pod(trace: &Trace, blocked: Option<&str>) -> Explanation {
    let blocked = blocked.or_else(|| pause_reason(trace));
    let mut facts = vec![if trace.waits_for_deletion {
        format!("has terminated{}", trace.phase_suffix())
    } else {
        describe(trace, blocked.is_some())
    }];
    let (begun, attempts) = trace.start_and_attempts();
    facts.push(format!("{begun}, {attempts}"));
    let done = completed_steps(trace);
    if !done.is_empty() {
        facts.push(format!("done: {done}"));
    }
    let whole_pod = trace.blocked.iter().filter(|blocked| blocked.step.is_none());
    facts.extend(whole_pod.map(ToString::to_string));
    if let Some(state) = &trace.runtime_state {
        facts.push(format!("runtime: {state}"));
    }
    if let Some(error) = &trace.sandbox_error {
        let network = match names_network(error) {
            true => "its network may still exist, since ",
            false => "",
        };
        facts.push(format!("{network}the first stop of its sandbox failed: {error}"));
    }
    if !trace.finalizers.is_empty() {
        facts.push(format!("finalizers of its object: {}", trace.finalizers.join(", ")));
    }
    Explanation {
        objects: vec![ObjectFacts::new(
            &format!("Pod {}/{}", trace.namespace, trace.name),
            &trace.uid,
            &facts,
        )],
        causes: failed_steps(trace),
        end: escape_control_chars(&conclusion(trace, blocked)),
    }
}

/// Explains a pod that this agent does not terminate now: by facts that were only read. `trace`: its trace, if it has one.
pub fn explain_by_causes(read: &Facts, trace: Option<&Trace>, causes: Vec<Cause>) -> Explanation {
    let view = &read.view;
    // What is left of the grace period is a cause, with its clock.
    let deletion = view.deletion.map(|deletion| {
        let at = deletion.timestamp.strftime("%Y-%m-%d %H:%M:%S UTC");
        format!("is being deleted; its deletionTimestamp is {at}")
    });
    let phase = view.object.status().and_then(|status| status.phase.as_ref());
    let mut facts = Vec::from_iter(deletion);
    facts.extend(phase.map(|phase| format!("phase {phase}")));
    if let Some(trace) = trace.filter(|trace| trace.attempts > 0) {
        let (begun, attempts) = trace.start_and_attempts();
        facts.push(format!("this agent has worked on it: {begun}, {attempts}"));
    }
    Explanation {
        objects: vec![ObjectFacts::new(
            &format!("Pod {}", view.pod),
            view.pod.uid.as_str(),
            &facts,
        )],
        end: conclusion_of_causes(&causes),
        causes,
    }
}

/// The failed steps of the last attempt.
fn failed_steps(trace: &Trace) -> Vec<Cause> {
    let cause = |blocked: &Obstacle| {
        let step = blocked.step?;
        let cause = Cause::new(Severity::Blocking, CauseKind::StepFailed, blocked.to_string());
        Some(cause.at(step).with_remedy(remedy_of_failed(step)))
    };
    trace.blocked.iter().filter_map(cause).collect()
}

/// Where to look if no other cause explains the failed step.
fn remedy_of_failed(step: Step) -> &'static str {
    match step {
        Step::Hook | Step::Term | Step::Kill | Step::Sandbox | Step::Cleanup => {
            "remove what the message names; the runtime's log has more: journalctl -u containerd, or -u crio"
        }
        Step::Devices | Step::Volumes => "remove what the message names; the log of the driver's pod has more",
        Step::Cgroup => "remove what the message names: kill the processes, or unmount the path",
        Step::Status | Step::Delete => "check the API server and this agent's permissions: pod-teardown check",
    }
}

/// Puts the failed steps before the causes that the node shows. What a later step waits for does not block yet; what explains a
/// failed step blocks, and its remedy is that of the step.
pub fn rank(mut failed: Vec<Cause>, mut shown: Vec<Cause>) -> Vec<Cause> {
    let steps: Vec<_> = failed.iter().filter_map(|cause| cause.step).collect();
    let Some(first) = steps.iter().min() else {
        return shown;
    };
    for cause in &mut shown {
        cause.severity = match (cause.step, cause.severity) {
            (Some(step), Severity::Later | Severity::Info) if steps.contains(&step) => Severity::Blocking,
            (Some(step), Severity::Blocking | Severity::Waiting) if step > *first && !steps.contains(&step) => {
                Severity::Later
            }
            (_, severity) => severity,
        };
    }
    shown.retain(|cause| cause.kind != CauseKind::NothingFound);
    for cause in &mut failed {
        let explains = |other: &&Cause| other.step == cause.step && other.severity == Severity::Blocking;
        if let Some(other) = shown.iter().find(explains).filter(|other| !other.remedy.is_empty()) {
            cause.remedy.clone_from(&other.remedy);
        }
    }
    failed.extend(shown);
    failed.sort_by_key(|cause| cause.severity);
    failed
}

/// What holds the object of a pod that this node has finished.
pub fn causes_of_finalizers(trace: &Trace) -> Vec<Cause> {
    let finalizers = trace.finalizers.iter();
    finalizers.map(|it| Cause::finalizer(Severity::Blocking, it)).collect()
}

/// Combines the explanations of the agent and of its collector. The collector's conclusion applies once the node has finished.
///
/// # Errors
/// The collector's, if neither knows the object.
pub fn combined<E>(pod: Option<(Explanation, Stage)>, collector: Result<Explanation, E>) -> Result<Explanation, E> {
    match (pod, collector) {
        (None, collector) => collector,
        (Some((pod, _)), Err(_)) => Ok(pod),
        (Some((mut pod, stage)), Ok(collector)) => {
            let mut objects = collector.objects.into_iter();
            if let (Some(here), Some(there)) = (pod.objects.first_mut(), objects.next()) {
                here.facts.extend(there.facts);
            }
            if stage == Stage::Finished {
                pod.objects.extend(objects);
                pod.end = collector.end;
            }
            Ok(pod)
        }
    }
}

/// The steps that have succeeded, in their order.
fn completed_steps(trace: &Trace) -> String {
    let is_done = |step: &Step| {
        // Only the last attempt counts.
        let last = trace.spans.iter().rfind(|span| span.step == *step);
        last.is_some_and(|span| span.end_ms.is_some() && span.failure.is_none())
    };
    let steps = Step::VARIANTS.iter().filter(|step| is_done(step));
    steps.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn conclusion(trace: &Trace, agent_blocked: Option<&str>) -> String {
    let (namespace, name, blocked) = (&trace.namespace, &trace.name, &trace.blocked);
    if trace.stage == Stage::Finished {
        if trace.finalizers.is_empty() {
            return "Nothing is left of it on this node, and its object was deleted.".to_owned();
        }
        return format!(
            "The teardown on this node is complete. The pod's object stays until controllers remove its finalizers. To list them: kubectl get pod {name} -n {namespace} -o jsonpath='{{.metadata.finalizers}}'"
        );
    }
    if trace.waits_for_deletion {
        return "Nothing of it runs, and it was not deleted: its object, its containers and their logs stay until it is."
            .to_owned();
    }
    if let Some(reason) = agent_blocked {
        return format!("Nothing on this node is touched: {reason}");
    }
    let is_retried = |kind| [MismatchKind::VolumeNotUnpublished, MismatchKind::NetworkNotRemoved].contains(&kind);
    if trace.mismatch.as_ref().is_some_and(|it| !is_retried(it.mismatch.kind)) {
        return format!(
            "It waits for an approval; see pod-teardown holds, and then pod-teardown approve pod/{namespace}/{name} --digest DIGEST"
        );
    }
    if let Some(left) = trace.kill_in_ms {
        return format!(
            "This agent sends SIGKILL to the pod's processes in {}, unless the runtime stops the pod first.",
            seconds(left)
        );
    }
    if blocked.is_empty() {
        return "It is in progress, and nothing has failed; see pod-teardown timeline.".to_owned();
    }
    let next = match trace.next_attempt() {
        // Other pods, or the whole agent: no attempt is scheduled.
        _ if blocked.iter().all(|blocked| blocked.step.is_none()) => String::new(),
        None => " The next attempt is in progress.".to_owned(),
        Some(at) => format!(" The next attempt begins by {} UTC.", at.strftime("%H:%M:%S")),
    };
    format!("It waits for {}.{next}", format_count(blocked.len() as u64, "thing"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::trace::{BlockedReason, Obstacle, Span};

    fn trace(stage: Stage, blocked: Vec<Obstacle>) -> Trace {
        let span = |step, failure: Option<&str>| Span {
            step,
            what: String::new(),
            start_ms: 0,
            end_ms: Some(5),
            failure: failure.map(str::to_owned),
        };
        Trace {
            namespace: "shop".into(),
            stage,
            elapsed_ms: 100_000,
            attempts: 2,
            blocked,
            spans: vec![
                span(Step::Term, Some("it does not answer")),
                span(Step::Sandbox, None),
                span(Step::Volumes, None),
                span(Step::Term, None),
                span(Step::Volumes, Some("busy")),
            ],
            ..Trace::sample()
        }
    }

    #[test]
    fn explanation_lists_completed_steps_and_failures_with_their_holders() {
        let busy = Obstacle {
            step: Some(Step::Volumes),
            retry_at: Some("2026-01-02T03:05:05Z".parse().unwrap()),
            ..Obstacle::pod(
                BlockedReason::Failed,
                "unmount /v: busy; held by pid 12 (postgres) of container db",
            )
        };
        let why = explain_pod(&trace(Stage::Terminated, vec![busy.clone()]), None);
        assert_eq!(
            why.text(),
            format!(
                "Pod shop/web-0  uid 1234\n  step volumes has failed, and is repeated, 1m40s after the beginning\n  \
                 began 2026-01-02 03:04:05 UTC (it was deleted), 2 attempts\n  done: term, sandbox\n\nBLOCKED  {busy}\n         -> remove what the message names; the log of the driver's pod has more\n\nIt waits for 1 thing. \
                 The next attempt begins by 03:05:05 UTC.\n"
            )
        );
    }

    #[test]
    fn failed_step_comes_first_with_the_remedy_of_what_explains_it_and_later_steps_do_not_block() {
        let network = Cause::new(Severity::Info, CauseKind::RuntimeNotReady, "NetworkReady=false");
        let failed = Cause::new(
            Severity::Blocking,
            CauseKind::StepFailed,
            "sandbox: cni plugin not initialized",
        );
        let failed = vec![failed.at(Step::Sandbox).with_remedy("read the log")];
        let phase = Cause::new(Severity::Waiting, CauseKind::PhaseNotTerminal, "its phase is Running");
        let shown = vec![
            phase.at(Step::Status),
            network.at(Step::Sandbox).with_remedy("repair the network plugin"),
            Cause::new(Severity::Info, CauseKind::NothingFound, ""),
        ];
        let ranked = rank(failed, shown.clone());
        let lines: Vec<_> = ranked.iter().map(|cause| (cause.severity, &*cause.message)).collect();
        assert_eq!(lines[0].1, "sandbox: cni plugin not initialized");
        assert_eq!(ranked[0].remedy, "repair the network plugin");
        assert!(
            lines[1].0 == Severity::Blocking && lines[1].1.contains("NetworkReady=false"),
            "{lines:?}"
        );
        assert!(
            lines[2].0 == Severity::Later && lines[2].1.contains("phase"),
            "{lines:?}"
        );
        assert_eq!(lines.len(), 3);
        assert_eq!(rank(Vec::new(), shown.clone()), shown, "nothing has failed");
    }

    #[test]
    fn conclusion_names_the_next_action() {
        let conclusion = |change: fn(&mut Trace), blocked| {
            let mut trace = trace(Stage::Terminated, Vec::new());
            change(&mut trace);
            explain_pod(&trace, blocked).end
        };
        for (change, blocked, words) in [
            ((|_| {}) as fn(&mut Trace), None, "nothing has failed"),
            (|_| {}, Some("a kubelet works"), "is touched: a kubelet works"),
            (
                |it| it.blocked = vec![Obstacle::pod(BlockedReason::Dependents, "pod a uses it")],
                None,
                "It waits for 1 thing.",
            ),
            (
                |it| it.kill_in_ms = Some(12_000),
                None,
                "This agent sends SIGKILL to the pod's processes in 12.0s",
            ),
            (|it| it.waits_for_deletion = true, None, "it was not deleted"),
            (|it| it.stage = Stage::Finished, None, "Nothing is left"),
            (
                |it| (it.stage, it.finalizers) = (Stage::Finished, vec!["example.com/hold".into()]),
                None,
                "kubectl get pod web-0 -n shop",
            ),
        ] {
            let conclusion = conclusion(change, blocked);
            assert!(conclusion.contains(words), "{conclusion}");
        }
    }

    #[test]
    fn conclusion_of_the_collector_applies_once_the_node_has_finished() {
        let facts = |object: &str, fact: &str| ObjectFacts {
            object: object.to_owned(),
            uid: "1".to_owned(),
            facts: vec![fact.to_owned()],
        };
        let pod = || Explanation {
            objects: vec![facts("Pod a/b", "here")],
            causes: Vec::new(),
            end: "node".to_owned(),
        };
        let collector = || Explanation {
            objects: vec![facts("Pod a/b", "there"), facts("Job a/c", "other")],
            causes: Vec::new(),
            end: "collector".to_owned(),
        };
        for (stage, objects, end) in [(Stage::Terminated, 1, "node"), (Stage::Finished, 2, "collector")] {
            let why = combined::<String>(Some((pod(), stage)), Ok(collector())).unwrap();
            assert_eq!((why.objects.len(), &*why.end), (objects, end));
            assert_eq!(why.objects[0].facts, ["here", "there"]);
        }
        assert_eq!(combined(Some((pod(), Stage::Finished)), Err("no")), Ok(pod()));
        assert_eq!(combined(None, Err("no")), Err("no"));
    }
}
