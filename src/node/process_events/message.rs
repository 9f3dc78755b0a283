//! Messages of the kernel's connector about processes. Pure.
//!
//! A message is a `struct nlmsghdr` (`linux/netlink.h`), in it a `struct cn_msg` (`linux/connector.h`), in it a `struct proc_event`
//! (`linux/cn_proc.h`), all in this CPU's byte order.

use nix::{
    errno::Errno,
    libc::{CN_IDX_PROC, CN_VAL_PROC, PROC_EVENT_COMM, PROC_EVENT_EXEC, PROC_EVENT_NONE},
};

/// Size of a request: both headers and the operation.
const REQUEST_SIZE: u32 = 40;
/// `NLMSG_DONE`, the type of each message of a connector.
const DONE: u16 = 3;
/// Size of `struct nlmsghdr`.
const NETLINK_HEADER: usize = 16;
/// `idx` and `val` of the `struct cn_msg`: which part of the kernel speaks.
const ID: usize = NETLINK_HEADER;
/// `ack` of the `struct cn_msg`: in an answer, that of the request plus one. In an event it is 0. The kernel does not return `seq`.
const ACKNOWLEDGED: usize = ID + 12;
const LENGTH: usize = ACKNOWLEDGED + 4;
/// What has happened, the first field of `struct proc_event`.
pub(super) const WHAT: u32 = 36;
/// The content of the `struct cn_msg`.
const CONTENT: usize = WHAT as usize;
/// The fields that depend on what has happened. CPU and time come before.
const DATA: usize = CONTENT + 16;
/// The process of a renamed thread.
pub(super) const RENAMED: u32 = 56;

/// What the kernel says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    /// The process has executed a program.
    Exec {
        /// Its pid in the initial PID namespace.
        pid: i32,
    },
    /// A thread of this process has a new name, which may be the old one.
    Renamed {
        /// The process.
        pid: i32,
    },
    /// The answer to the request with this number.
    Answer { number: u32, result: Result<(), Errno> },
}

/// A request with this operation, such as `PROC_CN_MCAST_LISTEN`, and a number for the answer.
pub(super) fn request(operation: u32, number: u32) -> [u8; REQUEST_SIZE as usize] {
    let mut request = [0; REQUEST_SIZE as usize];
    let mut set = |at: usize, bytes: &[u8]| request[at..at + bytes.len()].copy_from_slice(bytes);
    set(0, &REQUEST_SIZE.to_ne_bytes());
    set(4, &DONE.to_ne_bytes());
    set(ID, &CN_IDX_PROC.to_ne_bytes());
    set(ID + 4, &CN_VAL_PROC.to_ne_bytes());
    set(ACKNOWLEDGED, &number.to_ne_bytes());
    set(LENGTH, &4_u16.to_ne_bytes());
    set(CONTENT, &operation.to_ne_bytes());
    request
}

/// Parses a message; `None` for one of another kind, or a damaged one.
pub(super) fn parse(bytes: &[u8]) -> Option<Message> {
    let message = bytes.get(..usize::try_from(word(bytes, 0)?).ok()?)?;
    if (word(message, ID)?, word(message, ID + 4)?) != (CN_IDX_PROC, CN_VAL_PROC) {
        return None;
    }
    match word(message, CONTENT)? {
        PROC_EVENT_NONE => Some(Message::Answer {
            number: word(message, ACKNOWLEDGED)?.wrapping_sub(1),
            result: match word(message, DATA)?.cast_signed().saturating_abs() {
                0 => Ok(()),
                errno => Err(Errno::from_raw(errno)),
            },
        }),
        // The process has one thread left: its pid and that of the thread are the same.
        PROC_EVENT_EXEC => Some(Message::Exec {
            pid: word(message, DATA)?.cast_signed(),
        }),
        PROC_EVENT_COMM => Some(Message::Renamed {
            pid: word(message, RENAMED as usize)?.cast_signed(),
        }),
        _ => None,
    }
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    let bytes = message.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use nix::libc::{PROC_CN_MCAST_LISTEN, PROC_EVENT_EXIT, PROC_EVENT_FORK};
    use proptest::prelude::*;

    use super::*;

    /// An event as Linux 6.18 sends it on x86-64, with these words: acknowledged, what, and the first of its own fields.
    fn event([acknowledged, what, first]: [u32; 3]) -> Vec<u8> {
        let words = [76, 3, 0, 0, 1, 1, 77, acknowledged, 40, what, 1, 7, 7, first, first];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        bytes.resize(76, 0);
        bytes
    }

    #[test]
    fn exec_and_answers_are_parsed_and_other_events_are_not() {
        let exec = Some(Message::Exec { pid: 4711 });
        let renamed = Some(Message::Renamed { pid: 4711 });
        let answer = |result| Some(Message::Answer { number: 9, result });
        for (fields, expected) in [
            ([0, PROC_EVENT_EXEC, 4711], exec),
            ([0, PROC_EVENT_COMM, 4711], renamed),
            ([10, PROC_EVENT_NONE, 0], answer(Ok(()))),
            ([10, PROC_EVENT_NONE, 1], answer(Err(Errno::EPERM))),
            // Linux documents the positive number only.
            (
                [10, PROC_EVENT_NONE, (-1_i32).cast_unsigned()],
                answer(Err(Errno::EPERM)),
            ),
            ([0, PROC_EVENT_FORK, 4711], None),
            ([0, PROC_EVENT_EXIT, 4711], None),
        ] {
            assert_eq!(parse(&event(fields)), expected, "{fields:?}");
        }
    }

    #[test]
    fn foreign_and_truncated_messages_are_ignored() {
        let exec = event([0, PROC_EVENT_EXEC, 4711]);
        for at in [ID, ID + 4] {
            let mut foreign = exec.clone();
            foreign[at..at + 4].copy_from_slice(&8_u32.to_ne_bytes());
            assert_eq!(parse(&foreign), None);
        }
        for length in 0..exec.len() {
            assert_eq!(parse(&exec[..length]), None, "{length}");
        }
        for length in [0, 3, 16, 35, 40, 55, 77, u32::MAX] {
            let mut damaged = exec.clone();
            damaged[..4].copy_from_slice(&length.to_ne_bytes());
            assert_eq!(parse(&damaged), None, "{length}");
        }
    }

    #[test]
    fn request_has_both_headers() {
        let words = [40, 3, 0, 0, 1, 1, 0, 9, 4, 1];
        let expected: Vec<u8> = words.iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
        // On a big-endian CPU, type and length are in the upper half of their word.
        if cfg!(target_endian = "little") {
            assert_eq!(request(PROC_CN_MCAST_LISTEN, 9).to_vec(), expected);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            parse(&bytes);
        }
    }
}
