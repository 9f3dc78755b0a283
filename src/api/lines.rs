//! The lines of a watch.

use std::io;

use bytes::BytesMut;
use tokio_util::codec::Decoder;

/// Limit of an object in bytes. etcd accepts 1.5 MiB, and JSON is larger.
pub const MAX_OBJECT: usize = 16 << 20;
/// A watch reuses the buffer of a line up to this many bytes.
const MAX_KEPT_LINE: usize = 256 << 10;

/// Decoder of a watch's lines. Unlike tokio's, it copies no line and frees the buffer of a long one.
#[derive(Default)]
pub struct Lines {
    /// Bytes of the buffer without a line feed.
    searched: usize,
}

impl Decoder for Lines {
    type Item = BytesMut;
    type Error = io::Error;

    fn decode(&mut self, buffer: &mut BytesMut) -> io::Result<Option<BytesMut>> {
        let Some(end) = buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
            self.searched = buffer.len();
            if buffer.len() > MAX_OBJECT {
                return Err(io::Error::other(format!("more than {MAX_OBJECT} bytes for one event")));
            }
            return Ok(None);
        };
        let line = buffer.split_to(self.searched + end + 1);
        self.searched = 0;
        if line.len() > MAX_KEPT_LINE {
            *buffer = BytesMut::from(&buffer[..]);
        }
        Ok(Some(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_line_is_decoded_from_pieces_of_any_size() {
        let (mut lines, mut buffer, mut found) = (Lines::default(), BytesMut::new(), Vec::new());
        let long = "x".repeat(MAX_KEPT_LINE);
        for piece in ["{\"a\"", ":1}\n{", "}\n\n", &long, "\n{\"b\":", "2}\n"] {
            buffer.extend_from_slice(piece.as_bytes());
            while let Some(line) = lines.decode(&mut buffer).unwrap() {
                found.push(String::from_utf8(line.to_vec()).unwrap());
            }
        }
        assert_eq!(
            found,
            ["{\"a\":1}\n", "{}\n", "\n", &format!("{long}\n"), "{\"b\":2}\n"]
        );
        buffer.extend_from_slice(&vec![b'x'; MAX_OBJECT + 1]);
        assert!(lines.decode(&mut buffer).is_err());
    }
}
