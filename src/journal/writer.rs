//! The one who writes: gathers what is to be written, commits it together, and does not give up.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use redb::Database;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, timeout},
};

use super::{JournalError, State, Trouble, file, lock};
use crate::{model::pod::PodUid, node::threads::Blocking};

/// What nobody waits for may be lost in a crash for so long; a commit costs two syncs of the disk, and pods seldom end
/// alone.
const GATHER: Duration = Duration::from_millis(100);
/// Most writes in one commit.
const BATCH: usize = 1024;

/// After a failed write, doubled up to the longest; whoever waits for the disk has it tried at once.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What the writer is told.
pub(super) enum Write {
    Row(Row),
    Durable(Waiter),
}

/// What a commit writes.
#[derive(Debug, Clone)]
pub(super) enum Row {
    Pod(Table, PodUid, Option<Vec<u8>>),
    Node(&'static str, String),
}

/// What is kept of pods, each in a table of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    /// Their ends.
    Ends,
    /// That the API server has shown them.
    Seen,
}

pub(super) type Waiter = oneshot::Sender<Result<(), JournalError>>;

/// Where the database is kept. It may take its time.
pub(super) trait Store: Send + Sync {
    /// Opens it, or makes one that holds these rows.
    fn open(&self, rows: &[Row]) -> Result<Database, JournalError>;

    /// This row is on the disk. Some are kept once more.
    fn holds(&self, _row: &Row) {}

    /// The quarantined journals beside it.
    fn quarantined(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// The only one who touches the database.
pub(super) struct Writer {
    pub store: Arc<dyn Store>,
    pub blocking: Blocking,
    /// None after an error.
    pub database: Option<Database>,
    pub state: Arc<Mutex<State>>,
}

// === impl Writer ===

impl Writer {
    /// Takes everything that waits, commits it in one transaction, then tells those who wait for it.
    pub async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Write>) {
        let mut batch = Vec::new();
        let mut pause = FIRST_PAUSE;
        loop {
            let more = queue.recv_many(&mut batch, BATCH);
            let received = match self.database {
                Some(_) => Some(more.await),
                None => timeout(pause, more).await.ok(),
            };
            let closed = received == Some(0);
            if closed && self.database.is_some() {
                return;
            }
            if !batch.is_empty() {
                gather(&mut batch, &mut queue).await;
            }
            let mut rows = Vec::new();
            let mut waiting = Vec::new();
            for write in batch.drain(..) {
                match write {
                    Write::Row(row) => rows.push(row),
                    Write::Durable(done) => waiting.push(done),
                }
            }
            let result = self.write(rows).await;
            self.tell(&result);
            for done in waiting {
                done.send(result.clone()).ok();
            }
            if closed {
                return;
            }
            pause = match result {
                Ok(()) => FIRST_PAUSE,
                Err(_) => (pause * 2).min(LONGEST_PAUSE),
            };
        }
    }

    /// Rows of a commit that failed are in the copy in memory, which is written whole the next time.
    async fn write(&mut self, mut rows: Vec<Row>) -> Result<(), JournalError> {
        let database = self.database.take();
        if database.is_none() {
            rows.splice(0..0, lock(&self.state).rows());
        }
        let store = Arc::clone(&self.store);
        let any_quarantined = !lock(&self.state).quarantined.is_empty();
        let written = self.blocking.run(move || {
            let (database, whole) = match database {
                Some(database) => (database, false),
                None => (store.open(&rows)?, true),
            };
            let began = Instant::now();
            file::commit(&database, whole, &rows)?;
            let took = (!rows.is_empty()).then(|| began.elapsed());
            rows.iter().for_each(|row| store.holds(row));
            // Opening it adds to them, and a user removes them.
            let quarantined = (whole || any_quarantined).then(|| store.quarantined());
            Ok((database, quarantined, took))
        });
        let (database, quarantined, took) = written.await.unwrap_or_else(|_| Err(JournalError::damaged()))?;
        self.database = Some(database);
        let mut state = lock(&self.state);
        if let Some(quarantined) = quarantined {
            state.quarantined = quarantined;
        }
        if let Some(took) = took {
            state.cost.commits += 1;
            state.cost.took += took;
        }
        Ok(())
    }

    fn tell(&self, result: &Result<(), JournalError>) {
        let Trouble { error: before, failed } = &mut lock(&self.state).trouble;
        match result {
            Ok(()) if before.is_some() => tracing::info!("Journal is written again, and whole"),
            Ok(()) => {}
            Err(error) => {
                *failed += 1;
                if before.as_ref() != Some(error) {
                    tracing::error!(%error, "Journal cannot be written: a restart would not know what was begun");
                }
            }
        }
        *before = result.as_ref().err().cloned();
    }
}

/// Waits for more as long as nobody waits for what is there.
async fn gather(batch: &mut Vec<Write>, queue: &mut mpsc::UnboundedReceiver<Write>) {
    let enough = sleep(GATHER);
    tokio::pin!(enough);
    while batch.len() < BATCH && !batch.iter().any(|write| !matches!(write, Write::Row(_))) {
        tokio::select! {
            // However much comes, it does not wait longer.
            biased;
            () = &mut enough => return,
            more = queue.recv() => match more {
                Some(more) => batch.push(more),
                // The agent stops: what is there is the last.
                None => return,
            },
        }
    }
}
