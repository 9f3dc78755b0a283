//! What no pod uses any more: left by a kubelet, or an agent, that was cut short between a pod and its volume.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

use futures::stream::{self, StreamExt as _};

use super::{
    super::super::{
        kind::Approved,
        storage::{Storage, in_words},
    },
    block,
    identity::{Identity, Unread, mounted_elsewhere},
    publication::table,
    release::{self, Stage, VERB},
    staging, users,
};
use crate::{
    node::{csi_files::STAGING, dirs::Dir, fault::Fault},
    teardown::on_disk::DiskReport,
};

/// What every CSI volume begins with in `volumesInUse`.
const CSI: &str = "kubernetes.io/csi/";

const OUT_OF_USE: &str = "take out of volumesInUse";

/// As many volumes are taken off the node at once: a driver that hangs does not hold up others.
const AT_ONCE: usize = 16;

/// Whether the volume of this name has been unused for long, and may be tried now.
pub type IsDue<'a> = dyn FnMut(&str) -> bool + Send + 'a;

/// What came of taking off the node what nobody uses.
#[derive(Debug, Default)]
#[must_use = "what has failed is to be told"]
pub struct Released {
    /// What was done.
    pub report: DiskReport,
    /// What has failed, by the volume's unique name, or by its place where nobody knows its name.
    pub failed: BTreeMap<String, Vec<Fault>>,
}

// === impl Released ===

impl Released {
    fn keep(&mut self, volume: impl Into<String>, done: Result<DiskReport, Vec<Fault>>) {
        match done {
            Ok(done) => self.report += done,
            Err(faults) => self.failed.entry(volume.into()).or_default().extend(faults),
        }
    }
}

/// Takes off the node what is staged and used by nobody, and out of `volumesInUse` what is not even staged: it could not be
/// attached elsewhere.
///
/// Asks `is_due` of each, by its unique name: what has just come to be unused may be somebody's who is not done yet.
pub async fn release_unused(storage: &Arc<Storage>, is_due: &mut IsDue<'_>) -> Released {
    let mut released = Released::default();
    let root = storage.root.path().display().to_string();
    let stages = storage.look(storage.root.path(), |storage| {
        let any = Dir::open(&storage.root.path().join(STAGING))?;
        any.map(|_| all(storage)).transpose()
    });
    let stages = match stages.await {
        Ok(Some(stages)) => stages,
        // No kubelet has ever mounted a CSI volume here.
        Ok(None) => return released,
        Err(faults) => {
            released.keep(root, Err(faults));
            return released;
        }
    };
    let mut volumes = BTreeMap::<Identity, Vec<Stage>>::new();
    for stage in stages {
        let place = stage.global().display().to_string();
        match identity(storage, &stage).await {
            Ok(Some(identity)) => volumes.entry(identity).or_default().push(stage),
            Ok(None) => released.keep(place, remove_nameless(storage, stage).await),
            Err(faults) => released.keep(place, Err(faults)),
        }
    }
    let mut due = Vec::new();
    for (identity, stages) in volumes {
        let name = identity.unique_name();
        let of = identity.clone();
        let user = storage.look(storage.root.path(), move |storage| users::of(storage, &of, None));
        match user.await {
            Ok(None) if is_due(&name) => due.push(release_one(Arc::clone(storage), identity, stages)),
            Ok(Some(user)) if user.unread.is_some() && is_due(&name) => {
                let places = stages.iter().flat_map(|stage| in_words(VERB, stage.global(), &user));
                released.keep(name, Err(places.collect()));
            }
            Ok(_) => {}
            Err(faults) => released.keep(name, Err(faults)),
        }
    }
    let mut due = stream::iter(due).buffer_unordered(AT_ONCE);
    while let Some((name, done)) = due.next().await {
        released.keep(name, done);
    }
    match not_even_staged(storage).await {
        Ok((volumes, unread)) => {
            for volume in volumes.into_iter().filter(|volume| is_due(volume)) {
                let out = match &unread {
                    None => {
                        let _turn = storage.turns.take(&volume).await;
                        storage.out_of_use(volume.clone(), Path::new(&volume)).await
                    }
                    Some(unread) => Err(in_words(OUT_OF_USE, &volume, unread)),
                };
                released.keep(volume, out.map(|()| DiskReport::default()));
            }
        }
        Err(faults) => released.keep(root, Err(faults)),
    }
    released
}

async fn release_one(
    storage: Arc<Storage>,
    identity: Identity,
    stages: Vec<Stage>,
) -> (String, Result<DiskReport, Vec<Fault>>) {
    let name = identity.unique_name();
    let _turn = storage.turns.take(&name).await;
    let done = release::release(&storage, &identity, None, stages, &Approved::default()).await;
    (name, done)
}

/// All places where something may be staged.
fn all(storage: &Storage) -> Result<Vec<Stage>, Fault> {
    let with_file_systems = staging::all(storage)?.into_iter().map(Stage::FileSystem);
    let devices = block::all(storage)?.into_iter().map(Stage::Block);
    Ok(with_file_systems.chain(devices).collect())
}

async fn identity(storage: &Arc<Storage>, stage: &Stage) -> Result<Option<Identity>, Vec<Fault>> {
    match stage {
        Stage::FileSystem(staged) => staged.identity(storage).await,
        Stage::Block(places) => places.identity(storage).await,
    }
}

/// The kubelet leaves directories for every volume of a driver that does not stage. Anything else that nobody can name is
/// told, and left.
async fn remove_nameless(storage: &Arc<Storage>, stage: Stage) -> Result<DiskReport, Vec<Fault>> {
    let (data, global) = (stage.data(), stage.global());
    let of = stage.clone();
    let look = storage.look(&data, move |storage| {
        Ok((of.may_be_staged()?, users::of_nameless(storage, &of)?))
    });
    let (may_be_staged, user) = look.await?;
    let table = table(storage).await?;
    let is_mounted = !table.mounts_at_or_below(&[&data, &global]).is_empty();
    let unknown = match stage {
        Stage::FileSystem(_) => "no file and nothing in volumesInUse tells which volume this is",
        Stage::Block(_) => "neither the kubelet's vol_data.json nor a PersistentVolume tells which volume this is",
    };
    let elsewhere = mounted_elsewhere(&table, storage.root.path(), &global, std::slice::from_ref(&global));
    if !is_mounted && !may_be_staged {
        // Nothing but directories, unless it is a device that a pod has.
        return match (&stage, user) {
            (Stage::Block(_), Some(_)) => Ok(DiskReport::default()),
            _ => storage.work(&data, move |storage| stage.remove(storage)).await,
        };
    }
    let why = match (user, elsewhere) {
        (Some(user), _) => format!("{unknown}, and {user}"),
        (None, Some(place)) => format!("{unknown}; no pod is known to use it, but it is mounted on {place:?} as well"),
        (None, None) => {
            format!("{unknown}, and no pod uses it; once it is unmounted and removed by hand, nothing waits for it")
        }
    };
    Err(in_words(VERB, global, &why))
}

/// What is in use, and of which nothing is on this node; and a file that may be about any of it.
async fn not_even_staged(storage: &Arc<Storage>) -> Result<(BTreeSet<String>, Option<Unread>), Vec<Fault>> {
    let why_not = |why: String| in_words("look for volumes in use below", storage.root.path(), &why);
    let mut in_use: BTreeSet<String> = storage.cluster.in_use().await.map_err(why_not)?.into_iter().collect();
    in_use.retain(|name| name.starts_with(CSI));
    if in_use.is_empty() {
        return Ok((in_use, None));
    }
    let (here, unread) = storage.look(storage.root.path(), traces).await?;
    Ok((in_use.difference(&here).cloned().collect(), unread))
}

/// The volumes that something on this node tells of, and a file that does not tell of which it is.
fn traces(storage: &Storage) -> Result<(BTreeSet<String>, Option<Unread>), Fault> {
    let (mut names, mut unread) = (BTreeSet::new(), None);
    let mut add = |said: Result<Identity, Unread>| match said {
        Ok(identity) => drop(names.insert(identity.unique_name())),
        Err(not) => drop(unread.get_or_insert(not)),
    };
    for stage in all(storage)? {
        add(match stage {
            Stage::FileSystem(staged) => staged.said()?,
            Stage::Block(places) => places.said()?,
        });
    }
    users::each(storage, &mut |_, said| {
        add(said);
        None::<()>
    })?;
    Ok((names, unread))
}
