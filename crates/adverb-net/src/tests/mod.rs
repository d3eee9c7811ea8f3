//! Tests of connections over software devices.

mod handles;
mod lanes;
mod redialing;
