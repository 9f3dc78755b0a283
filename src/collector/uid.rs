//! UIDs in 16 bytes: a million of them are in memory.

use std::fmt;

use hashbrown::DefaultHashBuilder;
use indexmap::IndexSet;
use uuid::Uuid;

/// A UUID, or the index of another text in [`InternedUids`]. UUIDs have a version from 1 to 8; indexes have a 0 in that
/// place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid([u8; 16]);

/// UIDs that are no UUIDs. The API server accepts any text as the UID of an owner reference. Entries are never removed,
/// so their number and length are limited.
#[derive(Debug, Default)]
pub struct InternedUids {
    texts: IndexSet<Box<str>, DefaultHashBuilder>,
}

/// Maximum length of a UID that is no UUID.
const MAX_LENGTH: usize = 128;
/// Maximum number of entries before references get no new ones. Existing objects may use the rest.
const MAX_REFERENCED: usize = 100_000;
const MAX_ENTRIES: usize = 1_000_000;

// === impl Uid ===

impl Uid {
    /// For references without a valid UID. No object has it.
    pub const NONE: Self = Self([u8::MAX; 16]);

    /// Parses a UUID as Kubernetes writes it: 36 characters in lower case. `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let uuid = Uuid::try_parse(text).ok()?;
        let is_canonical = uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text;
        let uid = Self(uuid.into_bytes());
        (is_canonical && uid.is_uuid()).then_some(uid)
    }

    fn interned(index: usize) -> Self {
        Self((index as u128).to_be_bytes())
    }

    fn is_uuid(self) -> bool {
        matches!(self.0[6] >> 4, 1..=8)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Uuid::from_bytes(self.0), f)
    }
}

/// Whether a string had invalid UTF-8, so that comparing it proves nothing.
pub fn is_damaged(text: &str) -> bool {
    !text.is_ascii() && text.contains(char::REPLACEMENT_CHARACTER)
}

// === impl InternedUids ===

impl InternedUids {
    /// The UID of an existing object; `None` if it is invalid or there are too many.
    pub fn intern_observed(&mut self, text: &str) -> Option<Uid> {
        self.intern(text, MAX_ENTRIES)
    }

    /// The UID of a reference; `None` if it is invalid or there are too many.
    pub fn intern_referenced(&mut self, text: &str) -> Option<Uid> {
        self.intern(text, MAX_REFERENCED)
    }

    fn intern(&mut self, text: &str, max: usize) -> Option<Uid> {
        let known = self.known(text);
        if known.is_some() || self.texts.len() >= max || text.len() > MAX_LENGTH || is_damaged(text) {
            return known;
        }
        let (index, _) = self.texts.insert_full(text.into());
        Some(Uid::interned(index))
    }

    /// The UID with this text, if it is known.
    pub fn known(&self, text: &str) -> Option<Uid> {
        Uid::parse(text).or_else(|| self.texts.get_index_of(text).map(Uid::interned))
    }

    pub fn text(&self, uid: Uid) -> String {
        if uid.is_uuid() {
            return format!("{uid:?}");
        }
        let index = usize::try_from(u128::from_be_bytes(uid.0)).ok();
        let text = index.and_then(|index| self.texts.get_index(index));
        text.map(ToString::to_string).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_uuid_as_kubernetes_writes_it_is_parsed() {
        assert!(Uid::parse("0b9a8230-aace-4480-91d0-db24e46eb609").is_some());
        for odd in [
            "",
            "uid-web",
            "0B9A8230-aace-4480-91d0-db24e46eb609",
            "0b9a8230aace448091d0db24e46eb609",
            "0b9a8230-aace-4480-91d0-db24e46eb60",
            "0b9a8230-aace-4480-91d0-db24e46eb60g",
            "0b9a8230-aace-4480-91d0+db24e46eb609",
            "00000000-0000-0000-0000-000000000000",
            "0b9a8230-aace-f480-91d0-db24e46eb609",
        ] {
            assert_eq!(Uid::parse(odd), None, "{odd}");
        }
    }

    #[test]
    fn an_invalid_uid_is_none_and_gets_no_entry() {
        let mut uids = InternedUids::default();
        let longest = "x".repeat(MAX_LENGTH);
        assert!(uids.intern_referenced(&longest).is_some());
        for text in [format!("{longest}x"), "uid\u{fffd}".to_owned()] {
            assert_eq!(
                (uids.intern_referenced(&text), uids.intern_observed(&text)),
                (None, None)
            );
        }
        assert_eq!(uids.texts.len(), 1);
        assert_eq!((uids.text(Uid::NONE), Uid::NONE.is_uuid()), (String::new(), false));
    }

    #[test]
    fn made_up_uids_do_not_use_the_entries_of_objects() {
        let mut uids = InternedUids::default();
        let known = uids.intern_referenced("known");
        for number in 0..2 * MAX_REFERENCED {
            uids.intern_referenced(&number.to_string());
        }
        assert_eq!(uids.texts.len(), MAX_REFERENCED);
        assert_eq!(
            (uids.intern_referenced("late"), uids.intern_referenced("known")),
            (None, known)
        );
        let late = uids.intern_observed("late");
        assert!(late.is_some());
        assert_eq!(uids.intern_referenced("late"), late);
    }

    proptest! {
        #[test]
        fn every_uid_is_returned_unchanged_and_distinct(
            texts in proptest::collection::vec("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[ -~]{0,8}", 1..30),
        ) {
            let mut uids = InternedUids::default();
            let interned: Vec<Uid> = texts.iter().map(|text| uids.intern_referenced(text).unwrap()).collect();
            for (one, uid) in texts.iter().zip(&interned) {
                prop_assert_eq!(one, &uids.text(*uid));
                for (other, other_uid) in texts.iter().zip(&interned) {
                    prop_assert_eq!(one == other, uid == other_uid);
                }
            }
        }
    }
}
