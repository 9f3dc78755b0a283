//! What whoever listens on the runtime's socket says first.
//!
//! Whoever greets in another protocol and hangs up may be gone before a question is sent, and then looks like a runtime
//! that is away. What was said can be read all the same.

use std::{path::Path, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

/// RFC 9113, section 3.4: what a client says first, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Length, type, flags and stream of a frame.
const HEADER: usize = 9;
/// The type of the frame that a server says first.
const SETTINGS: u8 = 4;
/// Greetings come at once.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether somebody greets there in another protocol than gRPC's.
pub async fn is_foreign(socket: &Path) -> bool {
    let mut said = Vec::new();
    let listen = async {
        let mut stream = UnixStream::connect(socket).await?;
        // It may have hung up already.
        stream.write_all(PREFACE).await.ok();
        while said.len() < HEADER && stream.read_buf(&mut said).await? > 0 {}
        std::io::Result::Ok(())
    };
    // Silence, and no connection, prove nothing; the words that came before an error count.
    timeout(PATIENCE, listen).await.ok();
    !said.is_empty() && !is_settings(&said)
}

fn is_settings(said: &[u8]) -> bool {
    // The stream is 0, but for a bit that is reserved.
    matches!(said, [_, _, _, SETTINGS, _, 0 | 0x80, 0, 0, 0, ..])
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn only_words_in_another_protocol_are_foreign() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert!(!is_foreign(&path).await, "nobody is there");
        let cases: [(&[u8], bool); 4] = [
            (b"SSH-2.0-OpenSSH_9.2\r\n", true),
            (b"?\n", true),
            (b"", false),
            (b"\0\0\x06\x04\0\0\0\0\0\0\x05\0\0\x40\0", false),
        ];
        for (greeting, foreign) in cases {
            let listener = UnixListener::bind(&path).unwrap();
            let greets = tokio::spawn(async move {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(greeting).await.unwrap();
            });
            assert_eq!(is_foreign(&path).await, foreign, "{greeting:?}");
            greets.await.unwrap();
            std::fs::remove_file(&path).unwrap();
        }
    }
}
