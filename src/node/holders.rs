//! Finds the holders of a mount.
//!
//! Never accesses the mounted file system, whose server may not answer: reads only links and text in /proc.

use std::{collections::HashMap, path::Path, sync::Arc, time::Duration};

use super::{
    mounts::{mount::Mount, table::MountTable},
    unmounts::{Call, CallsInFlight},
};

mod container;
pub(super) mod holder;
mod scan;

pub use container::container_of;
pub use holder::{Holders, MountHolder};
use scan::Scan;

/// Limit of the search, whatever the number of processes.
const SEARCH_LIMIT: Duration = Duration::from_secs(2);
/// Limit of one read: reading the memory map of a hung process may hang.
const READ_LIMIT: Duration = Duration::from_secs(3);

/// Finds the holders of these mounts, by mount ID; each has an entry. Processes are read from `proc`. `call` says for whom:
/// [`Call::FindHolders`] or [`Call::DiagnoseHolders`].
pub fn holders(
    proc: &Path,
    table: &Arc<MountTable>,
    busy: &[Mount],
    in_flight: &Arc<CallsInFlight>,
    call: Call,
) -> HashMap<u64, Holders> {
    let Some(first) = busy.first() else {
        return HashMap::new();
    };
    let scan = Scan::new(proc.to_owned(), Arc::clone(table), busy.to_vec());
    let found = Arc::clone(&scan.found);
    let search = move || scan.search_all(SEARCH_LIMIT);
    let result = in_flight.run_with_timeout(&first.path, call, READ_LIMIT, search);
    let mut holders = found.lock().clone();
    for it in holders.values_mut() {
        it.is_incomplete = result != Ok(true);
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(pid: i32, usage: &'static str) -> MountHolder {
        MountHolder {
            pid,
            command: "sh\n\"x".to_owned(),
            container: None,
            usage,
            is_in_other_namespace: false,
        }
    }

    #[test]
    fn search_for_a_user_refuses_no_search_of_a_teardown() {
        let line = b"7 1 0:5 / /pods/v rw - tmpfs t rw";
        let table = Arc::new(MountTable::parse(line, Path::new("/pods")).unwrap());
        let (in_flight, proc) = (Arc::<CallsInFlight>::default(), tempfile::tempdir().unwrap());
        let busy = table.mounts_below(Path::new("/pods"));
        let (release, hang) = std::sync::mpsc::channel::<()>();
        let wait = move || hang.recv().is_err();
        let asked = in_flight.run_with_timeout(&busy[0].path, Call::DiagnoseHolders, Duration::ZERO, wait);
        assert!(asked.is_err());
        let is_incomplete = |call| holders(proc.path(), &table, &busy, &in_flight, call)[&7].is_incomplete;
        assert!(!is_incomplete(Call::FindHolders));
        assert!(is_incomplete(Call::DiagnoseHolders));
        drop(release);
    }

    #[test]
    fn each_holder_is_shown_on_one_line() {
        let container = Some("0123456789abcdef".repeat(4));
        let holders = Holders {
            processes: vec![
                holder(7, "working directory"),
                MountHolder {
                    container,
                    is_in_other_namespace: true,
                    ..holder(8, "open file")
                },
            ],
            nested: vec!["/v/a\nb".into()],
            more: 3,
            ..Holders::default()
        };
        assert_eq!(
            holders.to_string(),
            "it is in use by process 7 \"sh\\n\\\"x\" (working directory), process 8 \"sh\\n\\\"x\" of container \
             0123456789abc in another mount namespace (open file), 3 more, mounts below it: \"/v/a\\nb\"; it is \
             retried when they exit"
        );
    }

    #[test]
    fn search_without_result_reports_it_and_whether_it_is_complete() {
        let mut holders = Holders::default();
        assert!(
            holders
                .to_string()
                .starts_with("it is in use, but no process was found")
        );
        holders.is_incomplete = true;
        assert!(holders.to_string().ends_with("(not all processes were read)"));
    }
}
