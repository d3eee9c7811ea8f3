//! Memory that this side exposes to the peer, and its registration for each lane.

use crate::frame::BY_ADDRESS;

/// A region that this side exposes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Exposed<R> {
    /// The number of the region, which no other region of the connection has.
    pub(crate) number: u64,
    /// The name; empty if the region is found by its addresses.
    pub(crate) name: String,
    /// The rights, as in [`ExposedRegion`](crate::ExposedRegion).
    pub(crate) rights: u8,
    pub(crate) registration: Registration<R>,
}

/// The registration of an exposed region.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Registration<R> {
    /// The region is registered for the lane of this number, or for none. For another lane, it is registered again.
    Registered { region: R, lane: Option<u32> },
    /// The driver is registering the memory.
    Registering,
}

impl<R> Exposed<R> {
    /// Returns the region, unless the driver has it.
    pub(crate) fn region(&self) -> Option<&R> {
        match &self.registration {
            Registration::Registered { region, .. } => Some(region),
            Registration::Registering => None,
        }
    }

    /// Returns the region, unless the driver has it.
    pub(crate) fn into_region(self) -> Option<R> {
        match self.registration {
            Registration::Registered { region, .. } => Some(region),
            Registration::Registering => None,
        }
    }

    /// Whether the peer finds the region by its name.
    pub(crate) fn is_named(&self) -> bool {
        self.rights & BY_ADDRESS == 0
    }
}

/// Takes the next region that must be registered for this lane, and returns its number too. The first `announced`
/// regions were announced over the lane.
pub(crate) fn take_unregistered<R>(
    exposed: &mut [Exposed<R>],
    announced: usize,
    lane: u32,
) -> Option<(u64, R)> {
    let item = exposed.get_mut(announced)?;
    match std::mem::replace(&mut item.registration, Registration::Registering) {
        Registration::Registered { region, lane: registered } if registered != Some(lane) => {
            Some((item.number, region))
        }
        registration => {
            item.registration = registration;
            None
        }
    }
}
