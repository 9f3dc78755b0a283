//! UIDs in 16 bytes: a million of them are held at once.

use std::{collections::HashMap, fmt};

/// A UID, or the place of one that is no UUID in a [`OddUids`]. Which of the two, the digit of the UUID's version tells:
/// UUIDs of version 1 to 8 stand for themselves, and no other text does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Uid([u8; 16]);

/// UIDs that are no UUIDs, as an owner reference may name: the API server takes any text there.
#[derive(Debug, Default)]
pub struct OddUids {
    texts: Vec<Box<str>>,
    places: HashMap<Box<str>, u64>,
}

/// Where the hyphens stand.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];
const LENGTH: usize = 36;

// === impl Uid ===

impl Uid {
    /// A UUID in the one spelling that Kubernetes gives; `None` for every other text.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != LENGTH {
            return None;
        }
        let mut value = 0u128;
        for (place, &byte) in bytes.iter().enumerate() {
            let digit = match byte {
                b'-' if HYPHENS.contains(&place) => continue,
                _ if HYPHENS.contains(&place) => return None,
                b'0'..=b'9' => byte - b'0',
                b'a'..=b'f' => byte - b'a' + 10,
                _ => return None,
            };
            value = value << 4 | u128::from(digit);
        }
        let uid = Self(value.to_be_bytes());
        uid.is_uuid().then_some(uid)
    }

    fn odd(place: u64) -> Self {
        Self(u128::from(place).to_be_bytes())
    }

    /// Letters of the UUID; by hand, since every request names several.
    fn text(self) -> [u8; LENGTH] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let value = u128::from_be_bytes(self.0);
        let (mut text, mut left) = ([b'-'; LENGTH], 32);
        for (place, letter) in text.iter_mut().enumerate() {
            if !HYPHENS.contains(&place) {
                left -= 1;
                *letter = DIGITS[(value >> (4 * left)) as usize & 0xf];
            }
        }
        text
    }

    fn is_uuid(self) -> bool {
        matches!(self.0[6] >> 4, 1..=8)
    }
}

impl fmt::Debug for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.text()).unwrap_or_default())
    }
}

// === impl OddUids ===

impl OddUids {
    /// The UID with this text.
    pub fn uid(&mut self, text: &str) -> Uid {
        if let Some(uid) = Uid::parse(text) {
            return uid;
        }
        if let Some(&place) = self.places.get(text) {
            return Uid::odd(place);
        }
        let place = self.texts.len() as u64;
        self.texts.push(text.into());
        self.places.insert(text.into(), place);
        Uid::odd(place)
    }

    /// The UID with this text, if there is one.
    pub fn known(&self, text: &str) -> Option<Uid> {
        Uid::parse(text).or_else(|| self.places.get(text).map(|&place| Uid::odd(place)))
    }

    /// Its text.
    pub fn text(&self, uid: Uid) -> String {
        if uid.is_uuid() {
            return format!("{uid:?}");
        }
        let place = usize::try_from(u128::from_be_bytes(uid.0)).ok();
        let text = place.and_then(|place| self.texts.get(place));
        text.map(ToString::to_string).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_the_spelling_of_the_api_server_stands_for_itself() {
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

    proptest! {
        #[test]
        fn every_text_comes_back_and_no_two_are_the_same(
            texts in proptest::collection::vec("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[ -~]{0,8}", 1..30),
        ) {
            let mut odd = OddUids::default();
            let uids: Vec<Uid> = texts.iter().map(|text| odd.uid(text)).collect();
            for (one, uid) in texts.iter().zip(&uids) {
                prop_assert_eq!(one, &odd.text(*uid));
                for (other, other_uid) in texts.iter().zip(&uids) {
                    prop_assert_eq!(one == other, uid == other_uid);
                }
            }
        }
    }
}
