//! Splits the body of a list into items while it arrives. The whole body is never in memory.

/// Number of open brackets inside an item, including its own.
const ITEM_DEPTH: usize = 3;

/// Reader of a JSON list such as `{"metadata": …, "items": [{…}, …]}`; buffers at most one item.
#[derive(Debug)]
pub struct ListItems {
    /// Bytes of one item, and of the list without its items.
    limit: usize,
    position: Position,
    string: StringState,
    /// Number of open brackets.
    depth: usize,
    item: Vec<u8>,
    remainder: Vec<u8>,
}

/// An item, or the list without its items, is larger than the limit in bytes.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("more than {0} bytes for one object")]
pub struct TooLarge(usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Position {
    Outside,
    Between,
    Item,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StringState {
    Outside,
    Inside,
    /// After a backslash.
    Escaped,
}

// === impl ListItems ===

impl ListItems {
    /// Buffers at most about `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            position: Position::Outside,
            string: StringState::Outside,
            depth: 0,
            item: Vec::new(),
            remainder: Vec::new(),
        }
    }

    /// Reads the next bytes and calls `each` with every complete item.
    ///
    /// # Errors
    /// An item, or the list without its items, exceeds the limit.
    pub fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), TooLarge> {
        let mut from = 0;
        for (index, byte) in bytes.iter().enumerate() {
            match (self.string, byte) {
                (StringState::Escaped, _) | (StringState::Outside, b'"') => self.string = StringState::Inside,
                (StringState::Inside, b'\\') => self.string = StringState::Escaped,
                (StringState::Inside, b'"') => self.string = StringState::Outside,
                (StringState::Outside, b'{' | b'[') => {
                    self.depth += 1;
                    match (self.position, byte, self.depth) {
                        (Position::Outside, b'[', 2) => {
                            self.append(&bytes[from..index])?;
                            from = index + 1;
                            let name = self.remainder.trim_ascii_end().strip_suffix(b":").unwrap_or_default();
                            if name.trim_ascii_end().ends_with(br#""items""#) {
                                self.position = Position::Between;
                            }
                            self.remainder.push(b'[');
                        }
                        (Position::Between, b'{', ITEM_DEPTH) => {
                            self.append(&bytes[from..index])?;
                            from = index;
                            self.position = Position::Item;
                        }
                        _ => {}
                    }
                }
                (StringState::Outside, b'}' | b']') => {
                    self.depth = self.depth.saturating_sub(1);
                    match (self.position, self.depth) {
                        (Position::Item, 2) => {
                            self.append(&bytes[from..=index])?;
                            from = index + 1;
                            each(&self.item);
                            self.item.clear();
                            self.position = Position::Between;
                        }
                        (Position::Between, 1) => {
                            self.append(&bytes[from..index])?;
                            from = index;
                            self.position = Position::Outside;
                        }
                        _ => {}
                    }
                }
                (StringState::Inside | StringState::Outside, _) => {}
            }
        }
        self.append(&bytes[from..])
    }

    /// The list without its items. It is valid JSON only after the whole list.
    pub fn into_remainder(self) -> Vec<u8> {
        self.remainder
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), TooLarge> {
        match self.position {
            Position::Item => self.item.extend_from_slice(bytes),
            Position::Outside => self.remainder.extend_from_slice(bytes),
            // Anything but an object makes the remainder unreadable.
            Position::Between => {
                let unexpected = bytes.iter().filter(|byte| !b", \t\r\n".contains(byte));
                self.remainder.extend(unexpected);
            }
        }
        if self.item.len().max(self.remainder.len()) > self.limit {
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

    /// The items and the remainder of a list that arrives in pieces of this size.
    fn split(list: &str, chunk: usize) -> (Vec<Value>, Option<Value>) {
        let (mut items, mut items_read) = (ListItems::new(1 << 20), Vec::new());
        for chunk in list.as_bytes().chunks(chunk) {
            items
                .push(chunk, |item| items_read.push(serde_json::from_slice(item).unwrap()))
                .unwrap();
        }
        (items_read, serde_json::from_slice(&items.into_remainder()).ok())
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
        fn list_is_split_the_same_from_any_pieces(
            objects in proptest::collection::vec(proptest::collection::vec((text(), value()), 0..4), 0..5),
            metadata in value(),
            chunk in 1..64_usize,
            pretty in any::<bool>(),
        ) {
            let objects: Vec<Value> = objects.into_iter().map(|fields| Value::Object(fields.into_iter().collect())).collect();
            let list = json!({ "kind": "PodList", "items": objects, "metadata": { "more": metadata } });
            let text = if pretty { serde_json::to_string_pretty(&list) } else { serde_json::to_string(&list) };
            let (items_read, remainder) = split(&text.unwrap(), chunk);
            prop_assert_eq!(items_read, objects);
            prop_assert_eq!(remainder, Some(json!({ "kind": "PodList", "items": [], "metadata": { "more": metadata } })));
        }
    }

    #[test]
    fn partial_list_or_list_of_non_objects_is_invalid() {
        let list = r#"{"items":[{"a":1},{"b":"]}"}],"metadata":{}}"#;
        for cut in 0..list.len() {
            assert_eq!(split(&list[..cut], 7).1, None, "{}", &list[..cut]);
        }
        assert_eq!(split(r#"{"items":[{"a":1},7]}"#, 4).1, Some(json!({ "items": [7] })));
        assert_eq!(split(r#"{"items":null}"#, 4).1, Some(json!({ "items": null })));
    }

    #[test]
    fn object_larger_than_the_limit_is_an_error() {
        let push = |text: &str| ListItems::new(16).push(text.as_bytes(), |_| ());
        assert_eq!(push(r#"{"items":[{"a":1},{"b":2},{"c":3}"#), Ok(()));
        assert_eq!(push(r#"{"items":[{"a":"a long text"}"#), Err(TooLarge(16)));
        assert_eq!(push(r#"{"metadata":"a long text""#), Err(TooLarge(16)));
    }
}
