/* The fingerprint of the sources that an extension was made of (`fingerprint.py`); '' where none was given. */
#ifndef AIODIST_FINGERPRINT
#define AIODIST_FINGERPRINT ""
#endif
