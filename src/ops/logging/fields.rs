//! Fields of an event.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};

use crate::model::foreign;

/// Maximum length of a value, so that an entry fits into a datagram to journald.
pub const MAX_VALUE: usize = 16 << 10;

/// Collects the fields of an event.
pub struct Fields<'a>(pub &'a mut Map<String, Value>);

// === impl Fields ===

impl Visit for Fields<'_> {
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
