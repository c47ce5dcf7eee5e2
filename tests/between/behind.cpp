// Empty, only a name to link with: at run time libcuda-behind.so.1 is a link to the driver.
