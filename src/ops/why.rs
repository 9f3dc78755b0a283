//! Why a pod of this node is still there, from the story of its end. Pure.

use crate::{
    collector::names::visible,
    explanation::{Explanation, ObjectFacts},
    model::{
        mismatch::MismatchKind,
        pod::PodView,
        trace::{Stage, Step, Trace},
    },
    ops::progress::{paused, stands},
    words::counted,
};

/// Of a pod whose end this agent has begun, while `held` holds everything back, or nothing does.
pub fn of_pod(story: &Trace, held: Option<&str>) -> Explanation {
    let held = held.or_else(|| paused(story));
    let mut says = vec![if story.kept {
        format!("has ended{}", story.shown())
    } else {
        stands(story, held.is_some())
    }];
    let (begun, attempts) = story.begun();
    says.push(format!("{begun}, {attempts}"));
    let done = done(story);
    if !done.is_empty() {
        says.push(format!("done: {done}"));
    }
    says.extend(story.blocked.iter().map(|failure| format!("waits for: {failure}")));
    if let Some(state) = &story.runtime_state {
        says.push(format!("runtime: {state}"));
    }
    if let Some(error) = &story.sandbox_error {
        says.push(format!(
            "its network may be left, since the first stop of its sandbox failed: {error}"
        ));
    }
    if !story.finalizers.is_empty() {
        says.push(format!("finalizers of its object: {}", story.finalizers.join(", ")));
    }
    Explanation {
        objects: vec![ObjectFacts {
            object: format!("Pod {}/{}", story.namespace, story.name),
            uid: story.uid.clone(),
            says: says.iter().map(|line| visible(line)).collect(),
        }],
        end: visible(&end(story, held)),
    }
}

/// Of a mirror, with which this agent never has to do; nothing of another pod.
pub fn of_mirror(view: &PodView) -> Option<Explanation> {
    let PodView { pod, deletion, .. } = view;
    view.mirror.then(|| Explanation {
        objects: vec![ObjectFacts {
            object: format!("Pod {}/{}", pod.namespace, pod.name),
            uid: pod.uid.to_string(),
            says: vec![
                "is the mirror of a static pod, which runs from a manifest on this node".to_owned(),
                match deletion {
                    Some(_) => "was deleted, which ends nothing of the static pod".to_owned(),
                    None => "was not deleted".to_owned(),
                },
            ],
        }],
        end: match deletion {
            Some(_) => "Only a kubelet deletes it, and makes it anew as long as the manifest is there: start the kubelet of this node.",
            None => "It stays as long as the manifest is there.",
        }
        .to_owned(),
    })
}

/// What this agent and its collector say of one object, each if it knows it: the collector knows better once the node has
/// done its part.
pub fn joined(
    pod: Option<(Explanation, Stage)>,
    collector: Result<Explanation, String>,
) -> Result<Explanation, String> {
    match (pod, collector) {
        (None, collector) => collector,
        (Some((pod, _)), Err(_)) => Ok(pod),
        (Some((mut pod, stage)), Ok(collector)) => {
            let mut objects = collector.objects.into_iter();
            if let (Some(here), Some(there)) = (pod.objects.first_mut(), objects.next()) {
                here.says.extend(there.says);
            }
            if stage == Stage::Finished {
                pod.objects.extend(objects);
                pod.end = collector.end;
            }
            Ok(pod)
        }
    }
}

/// Steps that have come to a good end, in their order.
fn done(story: &Trace) -> String {
    let is_done = |step: &Step| {
        let mut spans = story.spans.iter().filter(|span| span.step == *step).peekable();
        // Of attempts only the last one counts, whose bars come last.
        let any = spans.peek().is_some();
        let last = spans.last();
        any && last.is_some_and(|span| span.end_ms.is_some() && span.failure.is_none())
    };
    let steps = Step::ALL.iter().filter(|step| is_done(step));
    steps.map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn end(story: &Trace, held: Option<&str>) -> String {
    let Trace {
        namespace,
        name,
        blocked,
        finalizers,
        ..
    } = story;
    if story.stage == Stage::Finished && finalizers.is_empty() {
        return "Nothing is left of it on this node, and its object was deleted.".to_owned();
    }
    if story.stage == Stage::Finished {
        return format!(
            "This node has done its part. Its object stays until whoever owns these finalizers takes them off; what is there \
             now: kubectl get pod {name} -n {namespace} -o jsonpath='{{.metadata.finalizers}}'"
        );
    }
    if story.kept {
        return "Nothing of it runs, and it was not deleted: its object, its containers and their logs stay until it is."
            .to_owned();
    }
    if let Some(held) = held {
        return format!("Nothing on this node is touched: {held}");
    }
    if let Some(mismatch) = &story.mismatch {
        if mismatch.mismatch.kind == MismatchKind::VolumeNotTakenAway {
            return format!(
                "It is tried again within a minute. If the volume is gone from this node, the pod can go on without its driver; \
                 see pod-teardown held, and then pod-teardown release pod/{namespace}/{name}"
            );
        }
        return format!(
            "Only a person can settle this; see pod-teardown held, and then pod-teardown release pod/{namespace}/{name}"
        );
    }
    if blocked.is_empty() {
        return "It goes on, and nothing has failed; pod-teardown timeline shows how.".to_owned();
    }
    let count = counted(blocked.len() as u64, "thing");
    let mounts = if story.failed_at() == Some(Step::Volumes) {
        ", and as soon as the kernel tells that something of it was unmounted or that who uses it has ended"
    } else {
        ""
    };
    format!("It waits for {count}, and is tried again within a minute{mounts}.")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::trace::{Blocked, BlockedReason, Span};

    fn story(stage: Stage, blocked: Vec<Blocked>) -> Trace {
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
    fn a_pod_that_waits_tells_what_is_done_and_what_not_with_whoever_holds_it() {
        let busy = Blocked {
            step: Some(Step::Volumes),
            ..Blocked::pod(
                BlockedReason::Failed,
                "unmount /v: busy; held by pid 12 (postgres) of container db",
            )
        };
        let why = of_pod(&story(Stage::Terminated, vec![busy.clone()]), None);
        assert_eq!(
            why.text(),
            format!(
                "Pod shop/web-0  uid 1234\n  the removal of its volumes will be tried again, for 1 min 40 s\n  began 2026-01-02 \
                 03:04:05 UTC (it was deleted), 2 attempts\n  done: term, sandbox\n  waits for: {busy}\n\nIt waits for 1 thing, \
                 and is tried again within a minute, and as soon as the kernel tells that something of it was unmounted or that who uses it has ended.\n"
            )
        );
    }

    #[test]
    fn what_it_comes_to_names_who_has_to_do_something() {
        let ends = |change: fn(&mut Trace), held| {
            let mut story = story(Stage::Terminated, Vec::new());
            change(&mut story);
            of_pod(&story, held).end
        };
        for (change, held, words) in [
            ((|_| {}) as fn(&mut Trace), None, "nothing has failed"),
            (|_| {}, Some("a kubelet works"), "is touched: a kubelet works"),
            (|it| it.kept = true, None, "it was not deleted"),
            (|it| it.stage = Stage::Finished, None, "Nothing is left"),
            (
                |it| (it.stage, it.finalizers) = (Stage::Finished, vec!["example.com/hold".into()]),
                None,
                "kubectl get pod web-0 -n shop",
            ),
        ] {
            let end = ends(change, held);
            assert!(end.contains(words), "{end}");
        }
    }

    #[test]
    fn the_collector_has_the_last_word_once_the_node_has_done_its_part() {
        let told = |object: &str, say: &str| ObjectFacts {
            object: object.to_owned(),
            uid: "1".to_owned(),
            says: vec![say.to_owned()],
        };
        let pod = || Explanation {
            objects: vec![told("Pod a/b", "here")],
            end: "node".to_owned(),
        };
        let collector = || Explanation {
            objects: vec![told("Pod a/b", "there"), told("Job a/c", "other")],
            end: "collector".to_owned(),
        };
        for (stage, objects, end) in [(Stage::Terminated, 1, "node"), (Stage::Finished, 2, "collector")] {
            let why = joined(Some((pod(), stage)), Ok(collector())).unwrap();
            assert_eq!((why.objects.len(), &*why.end), (objects, end));
            assert_eq!(why.objects[0].says, ["here", "there"]);
        }
        assert_eq!(joined(Some((pod(), Stage::Finished)), Err("no".into())), Ok(pod()));
        assert_eq!(joined(None, Err("no".into())), Err("no".into()));
    }
}
