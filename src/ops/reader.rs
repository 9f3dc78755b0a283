//! The reader of standard output, such as `head` in a pipe.

use std::{future, io, os::fd::AsFd, thread};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use tokio::sync::oneshot;

/// Waits until nothing can read standard output any more: the last reader of the pipe or the terminal has exited. Never returns
/// for a file.
pub async fn wait_until_gone() {
    let (gone, is_gone) = oneshot::channel();
    // A thread of its own: the call may last as long as the process.
    thread::spawn(move || {
        if is_unread(io::stdout(), PollTimeout::NONE) {
            gone.send(()).ok();
        }
    });
    if is_gone.await.is_err() {
        future::pending::<()>().await;
    }
}

/// Whether nothing can read from the other end any more. Waits for that until the timeout. False if the kernel cannot say.
fn is_unread(out: impl AsFd, timeout: PollTimeout) -> bool {
    // Without a requested event, errors and hang-ups are still reported.
    let mut descriptors = [PollFd::new(out.as_fd(), PollFlags::empty())];
    loop {
        match poll(&mut descriptors, timeout) {
            Err(Errno::EINTR) => {}
            Err(_) | Ok(0) => return false,
            Ok(_) => {
                let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
                return descriptors[0].revents().is_some_and(|events| events.intersects(gone));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn only_a_pipe_without_a_reader_is_unread() {
        let (reader, writer) = io::pipe().unwrap();
        let second_reader = reader.try_clone().unwrap();
        drop(reader);
        assert!(!is_unread(&writer, PollTimeout::ZERO));
        drop(second_reader);
        // A child of another test may have the reader for a moment, until it executes its program.
        assert!(is_unread(&writer, PollTimeout::from(5000_u16)));
        assert!(!is_unread(File::create("/dev/null").unwrap(), PollTimeout::ZERO));
        assert!(!is_unread(tempfile::tempfile().unwrap(), PollTimeout::ZERO));
    }
}
