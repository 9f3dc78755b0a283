//! Log lines with the fields of an event and of its spans: `pod.uid` finds all lines of a pod.

use std::fmt;

use serde_json::{Map, Value};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

use crate::model::foreign;

/// Maximum length of a value, so that an entry fits into a datagram to journald.
pub const MAX_VALUE: usize = 16 << 10;

/// A tracing layer that writes each event as one line. A field of the event overrides those of its spans.
pub struct FlatLines<W> {
    /// Encodes the fields.
    pub encode: fn(&Metadata<'_>, Fields) -> Vec<u8>,
    /// Writes the line, without blocking.
    pub write: W,
}

/// Names and values.
#[derive(Default)]
pub struct Fields(pub Map<String, Value>);

// === impl FlatLines ===

impl<W, S> Layer<S> for FlatLines<W>
where
    W: Fn(&[u8]) + 'static,
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if let Some(span) = context.span(id) {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            span.extensions_mut().insert(fields);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields) = span.extensions_mut().get_mut::<Fields>()
        {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut all = Fields::default();
        let spans = context.event_scope(event).into_iter();
        for span in spans.flat_map(|scope| scope.from_root()) {
            if let Some(Fields(fields)) = span.extensions().get() {
                all.0.extend(fields.clone());
            }
        }
        event.record(&mut all);
        (self.write)(&(self.encode)(event.metadata(), all));
    }
}

// === impl Fields ===

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.0
            .insert(field.name().to_owned(), foreign::cut(value, MAX_VALUE).into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
