//! W3C trace context of a pod's termination. IDs are derived from the pod's UID, so that they are the same after a restart.

use futures::future::Either;
use http::HeaderValue;
use ring::digest::{SHA256, digest};
use tokio::task_local;

/// Name of the header in requests.
pub const HEADER: &str = "traceparent";

/// IDs of a trace and of the span that is the parent of new spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceContext {
    /// ID of the trace.
    pub trace_id: [u8; 16],
    /// ID of the span.
    pub span_id: [u8; 8],
}

task_local! {
    static CURRENT: TraceContext;
}

/// The context of the current task, if its pod is traced.
pub fn current() -> Option<TraceContext> {
    CURRENT.try_with(|context| *context).ok()
}

/// Runs `future` in this context. Without one, the context of the task stays.
///
/// Not an `async fn`: that would reserve the future's size twice, for its argument and for what it awaits.
pub fn scope<F: Future>(context: Option<TraceContext>, future: F) -> impl Future<Output = F::Output> {
    match context {
        Some(context) => Either::Left(CURRENT.scope(context, future)),
        None => Either::Right(future),
    }
}

// === impl TraceContext ===

impl TraceContext {
    /// The root span of a pod's termination. The trace ID is the pod's UID without hyphens if that is possible, else a hash.
    pub fn for_pod(uid: &str) -> Self {
        let hash = digest(&SHA256, format!("pod-teardown {uid}").as_bytes());
        let hex: String = uid.chars().filter(|char| *char != '-').collect();
        let id = (hex.len() == 32).then(|| u128::from_str_radix(&hex, 16).ok()).flatten();
        // All zeros is not valid.
        let id = id.filter(|id| *id != 0).map(u128::to_be_bytes);
        Self {
            trace_id: id.unwrap_or(std::array::from_fn(|index| hash.as_ref()[index])),
            span_id: std::array::from_fn(|index| hash.as_ref()[16 + index]),
        }
    }

    /// A child of this span: the step number `index`, which began `start_ms` after the root.
    #[must_use]
    pub fn step(&self, index: usize, start_ms: u64) -> Self {
        let (start, index) = (start_ms.to_be_bytes(), (index as u64).to_be_bytes());
        let hash = digest(&SHA256, &[&self.span_id[..], &start, &index].concat());
        let mut child = *self;
        child.span_id.copy_from_slice(&hash.as_ref()[..8]);
        child
    }

    /// Value of the `traceparent` header. The trace is sampled.
    pub fn traceparent(&self) -> Option<HeaderValue> {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let text = format!("00-{}-{}-01", hex(&self.trace_id), hex(&self.span_id));
        HeaderValue::try_from(text).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_id_is_the_uid_where_that_is_possible() {
        let context = TraceContext::for_pod("a682beb7-1310-493d-886a-8c8a7f7b8794");
        let header = context.traceparent().unwrap();
        let header = header.to_str().unwrap();
        assert!(header.starts_with("00-a682beb71310493d886a8c8a7f7b8794-"), "{header}");
        assert_eq!(header.len(), 55);
        for uid in [
            "",
            "web",
            "00000000-0000-0000-0000-000000000000",
            "+682beb71310493d886a8c8a7f7b8794",
        ] {
            let context = TraceContext::for_pod(uid);
            assert_ne!(context.trace_id, [0; 16], "{uid}");
            assert_eq!(context, TraceContext::for_pod(uid));
        }
        assert_ne!(TraceContext::for_pod("a").trace_id, TraceContext::for_pod("b").trace_id);
    }

    #[test]
    fn spans_of_two_runs_differ() {
        let root = TraceContext::for_pod("uid");
        assert_eq!(root.step(0, 10), root.step(0, 10));
        assert_ne!(root.step(0, 10).span_id, root.step(0, 20).span_id);
        assert_ne!(root.step(0, 10).span_id, root.step(1, 10).span_id);
        assert_ne!(root.step(0, 0).span_id, root.span_id);
    }

    #[tokio::test]
    async fn inner_context_replaces_the_outer_one() {
        let (outer, inner) = (TraceContext::for_pod("uid"), TraceContext::for_pod("other"));
        assert_eq!(current(), None);
        scope(Some(outer), async {
            assert_eq!(scope(Some(inner), async { current() }).await, Some(inner));
            assert_eq!(scope(None, async { current() }).await, Some(outer));
        })
        .await;
    }
}
