// Checkpoints: everything a program needs to write, find and read them. docs/checkpoint.md defines the format.
#pragma once
#include "tessera/train/checkpoint_folder.h"
#include "tessera/train/checkpoint_manifest.h"
#include "tessera/train/checkpoint_reader.h"
#include "tessera/train/checkpoint_together.h"
#include "tessera/train/checkpoint_writer.h"
