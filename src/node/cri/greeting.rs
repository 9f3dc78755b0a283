//! Detects another protocol on the runtime's socket by its first bytes.
//!
//! A server of another protocol may close the connection before a request is sent, and then looks like a runtime that is
//! down. The bytes it sent can still be read.

use std::{path::Path, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::timeout,
};

/// RFC 9113, section 3.4: the client's connection preface, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// Length, type, flags and stream ID of a frame.
const HEADER: usize = 9;
/// Type of the first frame that a server sends.
const SETTINGS: u8 = 4;
/// Servers send it immediately.
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether a server on this socket starts with another protocol than HTTP/2.
pub async fn is_foreign(socket: &Path) -> bool {
    let mut received = Vec::new();
    let listen = async {
        let mut stream = UnixStream::connect(socket).await?;
        // It may have closed the connection already.
        stream.write_all(PREFACE).await.ok();
        while received.len() < HEADER && stream.read_buf(&mut received).await? > 0 {}
        std::io::Result::Ok(())
    };
    // No data and no connection prove nothing. Bytes received before an error count.
    timeout(FIRST_FRAME_TIMEOUT, listen).await.ok();
    !received.is_empty() && !is_settings(&received)
}

fn is_settings(received: &[u8]) -> bool {
    // The stream ID is 0, except for a reserved bit.
    matches!(received, [_, _, _, SETTINGS, _, 0 | 0x80, 0, 0, 0, ..])
}

#[cfg(test)]
mod tests {
    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_bytes_of_another_protocol_are_foreign() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert!(!is_foreign(&path).await, "no server");
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
