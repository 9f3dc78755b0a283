//! Takes the body of a list apart while it arrives, one item at a time: the body is never held as a whole.

/// Brackets that are open in an item, its own included.
const IN_ITEM: usize = 3;

/// A JSON list such as `{"metadata": …, "items": [{…}, …]}`, of which at most one item is held.
#[derive(Debug)]
pub struct Items {
    /// Of one item, and of the list without its items.
    limit: usize,
    place: Place,
    string: InString,
    /// Brackets that are open.
    depth: usize,
    item: Vec<u8>,
    rest: Vec<u8>,
}

/// An item, or the list without its items, is larger than this.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {0} bytes for one object")]
pub struct TooLarge(usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Outside,
    Between,
    Item,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InString {
    No,
    Yes,
    /// Behind a backslash.
    Escaped,
}

// === impl Items ===

impl Items {
    /// Holds at most about `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            place: Place::Outside,
            string: InString::No,
            depth: 0,
            item: Vec::new(),
            rest: Vec::new(),
        }
    }

    /// Takes the next bytes, and gives every complete item to `each`.
    ///
    /// # Errors
    /// When more would have to be held than the limit.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), TooLarge> {
        let mut from = 0;
        for (at, byte) in bytes.iter().enumerate() {
            match (self.string, byte) {
                (InString::Escaped, _) | (InString::No, b'"') => self.string = InString::Yes,
                (InString::Yes, b'\\') => self.string = InString::Escaped,
                (InString::Yes, b'"') => self.string = InString::No,
                (InString::No, b'{' | b'[') => {
                    self.depth += 1;
                    match (self.place, byte, self.depth) {
                        (Place::Outside, b'[', 2) => {
                            self.hold(&bytes[from..at])?;
                            from = at + 1;
                            let name = self.rest.trim_ascii_end().strip_suffix(b":").unwrap_or_default();
                            if name.trim_ascii_end().ends_with(br#""items""#) {
                                self.place = Place::Between;
                            }
                            self.rest.push(b'[');
                        }
                        (Place::Between, b'{', IN_ITEM) => {
                            self.hold(&bytes[from..at])?;
                            from = at;
                            self.place = Place::Item;
                        }
                        _ => {}
                    }
                }
                (InString::No, b'}' | b']') => {
                    self.depth = self.depth.saturating_sub(1);
                    match (self.place, self.depth) {
                        (Place::Item, 2) => {
                            self.hold(&bytes[from..=at])?;
                            from = at + 1;
                            each(&self.item);
                            self.item.clear();
                            self.place = Place::Between;
                        }
                        (Place::Between, 1) => {
                            self.hold(&bytes[from..at])?;
                            from = at;
                            self.place = Place::Outside;
                        }
                        _ => {}
                    }
                }
                (InString::Yes | InString::No, _) => {}
            }
        }
        self.hold(&bytes[from..])
    }

    /// The list without its items. It is no JSON before all of the list has arrived.
    pub fn into_rest(self) -> Vec<u8> {
        self.rest
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), TooLarge> {
        match self.place {
            Place::Item => self.item.extend_from_slice(bytes),
            Place::Outside => self.rest.extend_from_slice(bytes),
            // What is no object makes the rest unreadable.
            Place::Between => {
                let odd = bytes.iter().filter(|byte| !b", \t\r\n".contains(byte));
                self.rest.extend(odd);
            }
        }
        if self.item.len().max(self.rest.len()) > self.limit {
            return Err(TooLarge(self.limit));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    /// The items and the rest of a list that arrives in pieces of this size.
    fn taken_apart(list: &str, piece: usize) -> (Vec<Value>, Option<Value>) {
        let (mut items, mut taken) = (Items::new(1 << 20), Vec::new());
        for piece in list.as_bytes().chunks(piece) {
            items
                .push(piece, |item| taken.push(serde_json::from_slice(item).unwrap()))
                .unwrap();
        }
        (taken, serde_json::from_slice(&items.into_rest()).ok())
    }

    fn text() -> impl Strategy<Value = String> {
        prop_oneof!["\\PC{0,12}", r#"[\[\]{}",:\\]{0,8}"#, Just("items".to_owned())]
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::from),
            text().prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec((text(), inner), 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_list_is_the_same_however_it_is_cut(
            objects in proptest::collection::vec(proptest::collection::vec((text(), value()), 0..4), 0..5),
            metadata in value(),
            piece in 1..64_usize,
            pretty in any::<bool>(),
        ) {
            let objects: Vec<Value> = objects.into_iter().map(|fields| Value::Object(fields.into_iter().collect())).collect();
            let list = json!({ "kind": "PodList", "items": objects, "metadata": { "more": metadata } });
            let text = if pretty { serde_json::to_string_pretty(&list) } else { serde_json::to_string(&list) };
            let (taken, rest) = taken_apart(&text.unwrap(), piece);
            prop_assert_eq!(taken, objects);
            prop_assert_eq!(rest, Some(json!({ "kind": "PodList", "items": [], "metadata": { "more": metadata } })));
        }
    }

    #[test]
    fn half_a_list_and_one_of_other_things_than_objects_are_no_list() {
        let list = r#"{"items":[{"a":1},{"b":"]}"}],"metadata":{}}"#;
        for cut in 0..list.len() {
            assert_eq!(taken_apart(&list[..cut], 7).1, None, "{}", &list[..cut]);
        }
        assert_eq!(
            taken_apart(r#"{"items":[{"a":1},7]}"#, 4).1,
            Some(json!({ "items": [7] }))
        );
        assert_eq!(taken_apart(r#"{"items":null}"#, 4).1, Some(json!({ "items": null })));
    }

    #[test]
    fn no_more_is_held_than_the_limit() {
        let push = |text: &str| Items::new(16).push(text.as_bytes(), |_| ());
        assert_eq!(push(r#"{"items":[{"a":1},{"b":2},{"c":3}"#), Ok(()));
        assert_eq!(push(r#"{"items":[{"a":"a long text"}"#), Err(TooLarge(16)));
        assert_eq!(push(r#"{"metadata":"a long text""#), Err(TooLarge(16)));
    }
}
