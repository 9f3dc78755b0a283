//! Converts traces of pods into spans of OpenTelemetry. Pure.

use std::time::Duration;

use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanEvents, SpanLinks},
};

use crate::{
    model::trace::{Step, Trace},
    trace_context::TraceContext,
};

/// How a trace ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The pod is torn down, by this agent or in the end by the kubelet.
    Finished,
    /// The stop request was canceled.
    Canceled,
    /// The agent stops before. The next run exports the root span.
    Unfinished,
}

/// The spans of a trace: one for the termination, and one below it for each step.
pub(super) fn spans(trace: &Trace, outcome: Outcome) -> Vec<SpanData> {
    let context = TraceContext::for_pod(&trace.uid);
    let at = |ms: u64| {
        let after = trace.began.checked_add(Duration::from_millis(ms));
        after.unwrap_or(trace.began).into()
    };
    let span = |context: TraceContext, parent, (start_ms, end_ms), failure: Option<&String>| SpanData {
        span_context: SpanContext::new(
            TraceId::from_bytes(context.trace_id),
            SpanId::from_bytes(context.span_id),
            TraceFlags::SAMPLED,
            false,
            TraceState::NONE,
        ),
        parent_span_id: parent,
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: "pod teardown".into(),
        start_time: at(start_ms),
        end_time: at(end_ms),
        attributes: vec![
            KeyValue::new("k8s.pod.uid", trace.uid.clone()),
            KeyValue::new("k8s.pod.name", trace.name.clone()),
            KeyValue::new("k8s.namespace.name", trace.namespace.clone()),
        ],
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: failure.map_or(Status::Unset, |why| Status::error(why.clone())),
        instrumentation_scope: InstrumentationScope::builder("pod-teardown")
            .with_version(env!("CARGO_PKG_VERSION"))
            .build(),
    };
    let root = (outcome != Outcome::Unfinished).then(|| {
        let why = trace.canceled_because.as_ref();
        let mut root = span(context, SpanId::INVALID, (0, trace.elapsed_ms), why);
        let grace = i64::try_from(trace.grace_seconds).unwrap_or(i64::MAX);
        root.attributes.extend([
            KeyValue::new("pod_teardown.cause", trace.cause.to_string()),
            KeyValue::new("pod_teardown.grace_period", grace),
            KeyValue::new("pod_teardown.attempts", i64::from(trace.attempts)),
        ]);
        root
    });
    let steps = trace.spans.iter().enumerate().map(|(index, step)| {
        let end_ms = step.end_ms.unwrap_or(trace.elapsed_ms).max(step.start_ms);
        let mut child = span(
            context.step(index, step.start_ms),
            SpanId::from_bytes(context.span_id),
            (step.start_ms, end_ms),
            step.failure.as_ref(),
        );
        child.name = step.step.name().into();
        let is_of_container = matches!(step.step, Step::Hook | Step::Term | Step::Kill) && !step.what.is_empty();
        let container = is_of_container.then(|| KeyValue::new("k8s.container.name", step.what.clone()));
        child.attributes.extend(container);
        child
    });
    root.into_iter().chain(steps).collect()
}

/// The attributes of this agent.
pub(super) fn resource(node: &str) -> Resource {
    let attributes = [
        ("service.name", "pod-teardown"),
        ("service.version", env!("CARGO_PKG_VERSION")),
        ("service.instance.id", node),
        ("k8s.node.name", node),
    ];
    let attributes = attributes.map(|(key, value)| KeyValue::new(key, value.to_owned()));
    Resource::builder_empty().with_attributes(attributes).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::trace::Span as Bar;

    fn trace() -> Trace {
        let bar = |step, what: &str, start_ms, end_ms, failure: Option<&str>| Bar {
            step,
            what: what.to_owned(),
            start_ms,
            end_ms,
            failure: failure.map(str::to_owned),
        };
        Trace {
            elapsed_ms: 5000,
            spans: vec![
                bar(Step::Term, "main", 10, Some(2000), None),
                bar(Step::Volumes, "", 2000, None, Some("busy")),
            ],
            ..Trace::sample()
        }
    }

    #[test]
    fn steps_are_children_of_the_termination_with_their_times_and_errors() {
        let trace = trace();
        let spans = spans(&trace, Outcome::Finished);
        let [root, term, volumes] = &spans[..] else {
            panic!("{spans:?}")
        };
        assert_eq!((root.parent_span_id, &root.status), (SpanId::INVALID, &Status::Unset));
        let ms = |at| {
            let at = jiff::Timestamp::try_from(at).unwrap();
            at.as_millisecond() - trace.began.as_millisecond()
        };
        assert_eq!(ms(root.end_time), 5000);
        for (span, name, from, to) in [(term, "term", 10, 2000), (volumes, "volumes", 2000, 5000)] {
            assert_eq!(span.parent_span_id, root.span_context.span_id());
            assert_eq!(span.span_context.trace_id(), root.span_context.trace_id());
            assert_eq!((&*span.name, ms(span.start_time), ms(span.end_time)), (name, from, to));
        }
        assert!(term.attributes.contains(&KeyValue::new("k8s.container.name", "main")));
        assert_eq!(volumes.status, Status::error("busy"));
        assert_ne!(term.span_context.span_id(), volumes.span_context.span_id());
    }

    #[test]
    fn root_span_is_exported_once() {
        let trace = trace();
        let names = |outcome| {
            spans(&trace, outcome)
                .into_iter()
                .map(|span| span.name)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(Outcome::Unfinished), ["term", "volumes"]);
        assert_eq!(names(Outcome::Canceled), ["pod teardown", "term", "volumes"]);
    }
}
