//! The same on object stores: moto, and a real server where one is named.
