//! Converts traces of pods into spans of OpenTelemetry. Pure.

use super::wire::{
    AnyValue, InstrumentationScope, KeyValue, Resource, ResourceSpans, ScopeSpans, Span, Status, any_value::Value,
    span::SpanKind, status::StatusCode,
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
pub(super) fn spans(trace: &Trace, outcome: Outcome) -> Vec<Span> {
    let context = TraceContext::for_pod(&trace.uid);
    let began = trace.began.as_millisecond();
    let at = |ms: u64| {
        u64::try_from(began)
            .unwrap_or_default()
            .saturating_add(ms)
            .saturating_mul(1_000_000)
    };
    let pod = [
        text("k8s.pod.uid", &trace.uid),
        text("k8s.pod.name", &trace.name),
        text("k8s.namespace.name", &trace.namespace),
    ];
    let root = (outcome != Outcome::Unfinished).then(|| {
        let mut attributes = pod.to_vec();
        attributes.push(text("pod_teardown.cause", &trace.cause.to_string()));
        attributes.push(number("pod_teardown.grace_period", trace.grace_seconds));
        attributes.push(number("pod_teardown.attempts", trace.attempts.into()));
        Span {
            trace_id: context.trace_id.to_vec(),
            span_id: context.span_id.to_vec(),
            name: "pod teardown".to_owned(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: at(0),
            end_time_unix_nano: at(trace.elapsed_ms),
            status: trace.canceled_because.as_ref().map(|why| error(why)),
            attributes,
            ..Span::default()
        }
    });
    let steps = trace.spans.iter().enumerate().map(|(index, span)| {
        let mut attributes = pod.to_vec();
        if matches!(span.step, Step::Hook | Step::Term | Step::Kill) && !span.what.is_empty() {
            attributes.push(text("k8s.container.name", &span.what));
        }
        Span {
            trace_id: context.trace_id.to_vec(),
            span_id: context.step(index, span.start_ms).span_id.to_vec(),
            parent_span_id: context.span_id.to_vec(),
            name: span.step.to_string(),
            kind: SpanKind::Internal.into(),
            start_time_unix_nano: at(span.start_ms),
            end_time_unix_nano: at(span.end_ms.unwrap_or(trace.elapsed_ms).max(span.start_ms)),
            status: span.failure.as_ref().map(|why| error(why)),
            attributes,
        }
    });
    root.into_iter().chain(steps).collect()
}

/// Spans with the attributes of this agent.
pub(super) fn resource_spans(node: &str, spans: Vec<Span>) -> ResourceSpans {
    let attributes = vec![
        text("service.name", "pod-teardown"),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("service.instance.id", node),
        text("k8s.node.name", node),
    ];
    ResourceSpans {
        resource: Some(Resource { attributes }),
        scope_spans: vec![ScopeSpans {
            scope: Some(InstrumentationScope {
                name: "pod-teardown".to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            }),
            spans,
        }],
    }
}

fn error(message: &str) -> Status {
    Status {
        message: message.to_owned(),
        code: StatusCode::Error.into(),
    }
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn number(key: &str, value: u64) -> KeyValue {
    attribute(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
    }
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
        assert!(root.parent_span_id.is_empty() && root.status.is_none());
        assert_eq!(root.end_time_unix_nano - root.start_time_unix_nano, 5_000_000_000);
        for (span, name, from, to) in [(term, "term", 10, 2000), (volumes, "volumes", 2000, 5000)] {
            assert_eq!((&span.parent_span_id, &span.trace_id), (&root.span_id, &root.trace_id));
            assert_eq!(span.name, name);
            let ms = |at: u64| (at - root.start_time_unix_nano) / 1_000_000;
            assert_eq!((ms(span.start_time_unix_nano), ms(span.end_time_unix_nano)), (from, to));
        }
        assert!(term.attributes.contains(&text("k8s.container.name", "main")));
        assert_eq!(volumes.status, Some(error("busy")));
        assert_ne!(term.span_id, volumes.span_id);
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
